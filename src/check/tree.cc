// The tree: entries against inodes. One fault should give one finding: whatever hangs below a fault
// that has been reported is not reported again.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <unordered_map>

#include "check/check.h"

namespace etcfs::check {
namespace {

constexpr std::uint32_t kDirectoryType = 4;  // S_IFDIR >> 12

std::uint32_t type_of(const meta::Inode& inode) { return inode.mode >> 12 & 15; }
bool is_dir(const meta::Inode& inode) { return type_of(inode) == kDirectoryType; }

struct Links {
  std::uint64_t entries = 0;  // that name this inode
  Ino directory;              // where the first of them stands
  std::uint64_t subdirectories = 0;
};

class Tree {
 public:
  Tree(const Image& image, Findings& out) : image_(image), keys_(image.keys), out_(out) {}

  void check() {
    for (const auto& [directory, list] : image_.entries) check_directory(directory, list);
    check_root();
    for (const auto& [ino, inode] : image_.inodes) {
      check_shape(ino, inode);
      if (image_.orphans.contains(ino))
        check_orphan(ino, inode);
      else
        check_links(ino, inode);
    }
    for (Ino ino : image_.orphans)
      if (!image_.inodes.contains(ino) && !image_.broken.contains(keys_.inode(ino)))
        report(Code::kOrphanWithoutInode, keys_.orphan(ino), "there is no inode of that number");
    check_cycles();
    check_families();
    check_births();
  }

 private:
  void report(Code code, std::string key, std::string message) {
    out_.push_back({code, std::move(key), std::move(message)});
  }
  const meta::Inode* find(Ino ino) const {
    auto it = image_.inodes.find(ino);
    return it == image_.inodes.end() ? nullptr : &it->second;
  }

  void check_directory(Ino directory, const std::vector<Entry>& list) {
    const meta::Inode* inode = find(directory);
    const std::string first = keys_.dirent(directory, list.front().name);
    if (inode == nullptr) {
      if (!image_.broken.contains(keys_.inode(directory)))
        report(Code::kEntryNoDirectory, first,
               fmt::format("{} entries in directory {:016x}, which does not exist", list.size(),
                           directory.v));
    } else if (!is_dir(*inode)) {
      report(Code::kEntryNoDirectory, first,
             fmt::format("{} entries in inode {:016x}, which has mode {:o}", list.size(),
                         directory.v, inode->mode));
    } else {
      if (image_.orphans.contains(directory))
        report(Code::kEntryNoDirectory, first,
               fmt::format("{} entries in directory {:016x}, which was removed", list.size(),
                           directory.v));
      check_cookies(directory, *inode, list);
    }
    for (const Entry& entry : list) check_entry(directory, entry);
  }

  void check_cookies(Ino directory, const meta::Inode& inode, const std::vector<Entry>& list) {
    std::vector<std::pair<std::uint64_t, const Entry*>> cookies;
    cookies.reserve(list.size());
    for (const Entry& entry : list) {
      const std::uint64_t cookie = entry.dirent.cookie;
      cookies.emplace_back(cookie, &entry);
      if (cookie < meta::kFirstCookie || cookie >= inode.next_cookie)
        report(Code::kCookieRange, keys_.dirent(directory, entry.name),
               fmt::format("cookie {}, not within [{}, {})", cookie, meta::kFirstCookie,
                           inode.next_cookie));
    }
    std::stable_sort(cookies.begin(), cookies.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 1; i < cookies.size(); ++i)
      if (cookies[i].first == cookies[i - 1].first)
        report(Code::kCookieDuplicate, keys_.dirent(directory, cookies[i].second->name),
               fmt::format("cookie {} is also that of '{}'", cookies[i].first,
                           printable(cookies[i - 1].second->name)));
  }

  void check_entry(Ino directory, const Entry& entry) {
    const Ino ino = entry.dirent.ino;
    const meta::Inode* target = find(ino);
    auto key = [&] { return keys_.dirent(directory, entry.name); };
    if (ino == kRootIno) {
      report(Code::kRootHasEntry, key(), "names the root directory");
      return;
    }
    Links& links = links_[ino];
    if (links.entries++ == 0) links.directory = directory;
    if (target == nullptr && image_.broken.contains(keys_.inode(ino))) {
      if (entry.dirent.type == kDirectoryType) ++links_[directory].subdirectories;
      return;
    }
    if (target == nullptr) {
      report(Code::kEntryWithoutInode, key(), fmt::format("names inode {:016x}", ino.v));
      return;
    }
    if (is_dir(*target)) ++links_[directory].subdirectories;
    if (entry.dirent.type != type_of(*target))
      report(Code::kEntryType, key(),
             fmt::format("type {}, but inode {:016x} has mode {:o}", entry.dirent.type, ino.v,
                         target->mode));
  }

  void check_root() {
    const meta::Inode* root = find(kRootIno);
    const std::string key = keys_.inode(kRootIno);
    if (root == nullptr) {
      if (!image_.broken.contains(key)) report(Code::kRootMissing, key, "no such key");
    } else if (!is_dir(*root)) {
      report(Code::kRootMissing, key, fmt::format("has mode {:o}", root->mode));
    } else if (root->parent != kRootIno) {
      report(Code::kRootParent, key, fmt::format("its parent is {:016x}", root->parent.v));
    }
  }

  void check_shape(Ino ino, const meta::Inode& inode) {
    const std::uint32_t type = type_of(inode);
    auto bad = [&](std::string message) {
      report(Code::kInodeShape, keys_.inode(ino), std::move(message));
    };
    if (ino.family() == kRenameFamily) bad("family 0 has no inodes");
    if (is_dir(inode) != ino.is_directory() && ino != kRootIno)
      bad(fmt::format("mode {:o} at index {}", inode.mode, ino.index()));
    if (type == 10) {
      if (inode.symlink.empty() || inode.symlink.size() > 4095 ||
          inode.symlink.find('\0') != std::string::npos)
        bad(fmt::format("a symbolic link whose target has {} bytes, or a NUL byte",
                        inode.symlink.size()));
    } else if (!inode.symlink.empty()) {
      bad("a target, but no symbolic link");
    }
    if (inode.size != 0 && type != 8) bad("a size, but no regular file");
    if (inode.rdev != 0 && type != 2 && type != 6) bad("a device number, but no device");
    if (type != 8 && (!inode.extents.empty() || inode.external_extents))
      bad("extents, but no regular file");
    if (is_dir(inode) && inode.next_cookie < meta::kFirstCookie)
      bad(fmt::format("next_cookie is {}", inode.next_cookie));
    if (!is_dir(inode) && (inode.parent != Ino{} || inode.birth_family != Family{} ||
                           inode.birth_bound != 0 || inode.next_cookie != 0))
      bad("a directory's fields, but no directory");
  }

  void check_orphan(Ino ino, const meta::Inode& inode) {
    auto it = links_.find(ino);
    const std::uint64_t entries = it == links_.end() ? 0 : it->second.entries;
    if (entries != 0 || inode.nlink != 0 || ino == kRootIno)
      report(Code::kOrphanLinked, keys_.orphan(ino),
             fmt::format("the inode has nlink {} and {} entries", inode.nlink, entries));
  }

  void check_links(Ino ino, const meta::Inode& inode) {
    auto it = links_.find(ino);
    const Links links = it == links_.end() ? Links{} : it->second;
    if (ino != kRootIno && links.entries == 0) {
      report(Code::kInodeWithoutEntry, keys_.inode(ino), fmt::format("nlink is {}", inode.nlink));
      return;
    }
    const std::uint64_t expected = is_dir(inode) ? 2 + links.subdirectories : links.entries;
    if (inode.nlink != expected)
      report(Code::kLinkCount, keys_.inode(ino),
             fmt::format("nlink is {}, should be {}", inode.nlink, expected));
    if (!is_dir(inode) || ino == kRootIno) return;
    if (links.entries > 1)
      report(Code::kDirectoryTwice, keys_.inode(ino),
             fmt::format("{} entries name this directory", links.entries));
    else if (inode.parent != links.directory)
      report(Code::kDirectoryParent, keys_.inode(ino),
             fmt::format("parent is {:016x}, its entry stands in {:016x}", inode.parent.v,
                         links.directory.v));
  }

  // Every directory is followed upwards, each once. The way ends at the root, at a fault reported
  // above, or in itself.
  void check_cycles() {
    enum class Mark { kNew, kOnWay, kDone };
    std::unordered_map<Ino, Mark> marks;
    for (const auto& [start, inode] : image_.inodes) {
      if (!is_dir(inode)) continue;
      std::vector<Ino> way;
      Ino at = start;
      while (at != kRootIno && marks[at] == Mark::kNew) {
        marks[at] = Mark::kOnWay;
        way.push_back(at);
        auto it = links_.find(at);
        if (it == links_.end() || it->second.entries == 0) break;
        at = it->second.directory;
        if (const meta::Inode* up = find(at); up == nullptr || !is_dir(*up)) break;
      }
      if (at != kRootIno && marks[at] == Mark::kOnWay) report_cycle(way, at);
      for (Ino ino : way) marks[ino] = Mark::kDone;
    }
  }
  void report_cycle(const std::vector<Ino>& way, Ino at) {
    auto begin = std::find(way.begin(), way.end(), at);
    // A way that ended for another reason has its last directory marked, and is no cycle.
    auto it = links_.find(way.back());
    if (begin == way.end() || it == links_.end() || it->second.entries == 0 ||
        it->second.directory != at)
      return;
    report(Code::kDirectoryCycle, keys_.inode(*std::min_element(begin, way.end())),
           fmt::format("{} directories contain each other", way.end() - begin));
  }

  void check_families() {
    if (!image_.family_counter) {
      if (!image_.broken.contains(keys_.family_counter()))
        report(Code::kCounterMissing, keys_.family_counter(), "no such key");
      return;
    }
    const Family counter = *image_.family_counter;
    Family last{};
    auto check_one = [&](Family family, std::string_view what, std::string key) {
      if (family >= counter)
        report(Code::kFamilyBeyondCounter, std::move(key),
               fmt::format("{} {:010x}, the counter stands at {:010x}", what, family.v, counter.v));
    };
    for (const auto& [ino, inode] : image_.inodes) {
      if (ino.family() != last && ino.family() >= counter)
        check_one(ino.family(), "family", keys_.inode(ino));
      else if (is_dir(inode) && inode.birth_family >= counter)
        check_one(inode.birth_family, "birth family", keys_.inode(ino));
      last = ino.family();
    }
    for (const Holder& lock : image_.locks)
      if (lock.key.family >= counter && !image_.inodes.contains(Ino(lock.key.family, 0)))
        check_one(lock.key.family, "lock on family",
                  keys_.lock(lock.key.family, lock.key.node, lock.key.epoch));
  }

  void check_births() {
    std::map<Family, std::pair<Ino, std::uint32_t>>
        births;  // family -> who gives birth there, bound
    for (const auto& [ino, inode] : image_.inodes) {
      if (!is_dir(inode)) continue;
      const Family family = inode.birth_family;
      auto bad = [&](std::string message) {
        report(Code::kBirthFamily, keys_.inode(ino), std::move(message));
      };
      if (family == kRenameFamily) {
        bad("gives birth in no family");
      } else if (family != ino.family() && find(Ino(family, 0)) != nullptr) {
        bad(fmt::format("gives birth in family {:010x}, which is another directory's", family.v));
      } else if (auto [it, fresh] = births.try_emplace(family, ino, inode.birth_bound); !fresh) {
        bad(fmt::format("gives birth in family {:010x}, and so does {:016x}", family.v,
                        it->second.first.v));
      }
      if (inode.birth_bound == 0)
        report(Code::kBirthBound, keys_.inode(ino), "birth bound 0, but index 0 is given");
    }
    for (const auto& [ino, inode] : image_.inodes) {
      auto it = births.find(ino.family());
      if (it == births.end() || it->second.second == 0 || ino.index() < it->second.second) continue;
      report(Code::kBirthBound, keys_.inode(ino),
             fmt::format("index {} is not below {}, the birth bound of {:016x}", ino.index(),
                         it->second.second, it->second.first.v));
    }
  }

  const Image& image_;
  const meta::Keys& keys_;
  Findings& out_;
  std::unordered_map<Ino, Links> links_;
};

}  // namespace

void check_tree(const Image& image, Findings& out) { Tree(image, out).check(); }

}  // namespace etcfs::check
