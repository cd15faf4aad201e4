// Extended attributes: small ones, in the inode's record.
#include <algorithm>

#include "fs/impl.h"

namespace etcfs::fs {
namespace {

constexpr std::size_t kMostXattrBytes = 32 * kKiB;  // of one inode, names and values

Result<void> check_xattr_name(std::string_view name) {
  if (name.empty() || name.size() > 255) return Reason::kRange;
  for (std::string_view ns : {"user.", "trusted.", "security."})
    if (name.starts_with(ns)) return {};
  return Reason::kNotSupported;  // system.posix_acl_*: no ACLs in this form
}

auto position(meta::Inode& rec, std::string_view name) {
  return std::lower_bound(rec.xattrs.begin(), rec.xattrs.end(), name,
                          [](const auto& x, std::string_view n) { return x.first < n; });
}

bool is_at(const meta::Inode& rec, auto it, std::string_view name) {
  return it != rec.xattrs.end() && it->first == name;
}

}  // namespace

Result<std::string> Filesystem::getxattr(Ino ino, std::string_view name) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_xattr_name(name));
  return c.run(false, [&](Attempt& a) -> Result<std::string> {
    auto inode = a.inode(ino, LockMode::kShared);
    if (!inode) return inode.error();
    auto it = position((*inode)->rec, name);
    if (!is_at((*inode)->rec, it, name)) return Reason::kNoAttribute;
    return it->second;
  });
}

Result<std::string> Filesystem::listxattr(Ino ino) {
  Impl& c = *impl_;
  return c.run(false, [&](Attempt& a) -> Result<std::string> {
    auto inode = a.inode(ino, LockMode::kShared);
    if (!inode) return inode.error();
    std::string names;
    for (const auto& [name, value] : (*inode)->rec.xattrs) names.append(name).push_back('\0');
    return names;
  });
}

Result<void> Filesystem::setxattr(const Caller&, Ino ino, std::string_view name,
                                  std::string_view value, XattrMode mode) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_xattr_name(name));
  ETCFS_TRY(StepNo done, c.run(true, [&](Attempt& a) -> Result<StepNo> {
    auto inode = a.inode(ino, LockMode::kExclusive);
    if (!inode) return inode.error();
    meta::Inode& rec = (*inode)->rec;
    auto it = position(rec, name);
    const bool there = is_at(rec, it, name);
    if (there && mode == XattrMode::kCreate) return Reason::kExists;
    if (!there && mode == XattrMode::kReplace) return Reason::kNoAttribute;
    std::size_t bytes = name.size() + value.size();
    for (const auto& x : rec.xattrs)
      if (x.first != name) bytes += x.first.size() + x.second.size();
    if (bytes > kMostXattrBytes) return Reason::kNoSpace;
    if (there) {
      it->second = value;
    } else {
      rec.xattrs.emplace(it, std::string(name), std::string(value));
    }
    rec.ctime = c.wall();
    meta::Step step;
    c.put_inode(step, **inode);
    return c.append(std::move(step));
  }));
  return c.finish(done);
}

Result<void> Filesystem::removexattr(const Caller&, Ino ino, std::string_view name) {
  Impl& c = *impl_;
  ETCFS_CHECK(check_xattr_name(name));
  ETCFS_TRY(StepNo done, c.run(true, [&](Attempt& a) -> Result<StepNo> {
    auto inode = a.inode(ino, LockMode::kExclusive);
    if (!inode) return inode.error();
    meta::Inode& rec = (*inode)->rec;
    auto it = position(rec, name);
    if (!is_at(rec, it, name)) return Reason::kNoAttribute;
    rec.xattrs.erase(it);
    rec.ctime = c.wall();
    meta::Step step;
    c.put_inode(step, **inode);
    return c.append(std::move(step));
  }));
  return c.finish(done);
}

}  // namespace etcfs::fs
