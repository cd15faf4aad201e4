// Extents of each file: where they are stored, that they do not overlap, and that nothing written
// lies beyond the end of the file (it would show as old bytes when the file grows).
#include <spdlog/fmt/fmt.h>

#include "check/check.h"

namespace etcfs::check {
namespace {

class Files {
 public:
  Files(const Image& image, Findings& out) : image_(image), keys_(image.keys), out_(out) {}

  void check() {
    for (const auto& [ino, inode] : image_.inodes)
      if (!inode.extents.empty() || inode.external_extents) check_file(ino, inode);
    for (const auto& [ino, chunks] : image_.external) {
      auto it = image_.inodes.find(ino);
      const std::string key = keys_.extents(ino, chunks.begin()->first);
      if (it == image_.inodes.end()) {
        if (!image_.broken.contains(keys_.inode(ino)))
          report(Code::kExtentsWithoutInode, key, fmt::format("there is no inode {:016x}", ino.v));
      } else if (!it->second.external_extents) {
        report(Code::kExtentsShape, key, "the inode says that it has no external extents");
      }
    }
  }

 private:
  void report(Code code, std::string key, std::string message) {
    out_.push_back({code, std::move(key), std::move(message)});
  }

  void check_file(Ino ino, const meta::Inode& inode) {
    const std::string key = keys_.inode(ino);
    if (inode.external_extents && !inode.extents.empty())
      report(Code::kExtentsShape, key, "extents both inline and external");
    if (inode.extents.size() > meta::kInlineExtents)
      report(Code::kExtentsShape, key,
             fmt::format("{} extents inline, {} are allowed", inode.extents.size(),
                         meta::kInlineExtents));
    std::uint64_t end = 0;
    bool beyond = false;
    for (const meta::Extent& e : inode.extents) check_extent(inode, key, e, end, beyond);
    if (auto it = image_.external.find(ino); it != image_.external.end() && inode.external_extents)
      for (const auto& [chunk, extents] : it->second)
        check_chunk(ino, inode, chunk, extents, end, beyond);
  }

  void check_chunk(Ino ino, const meta::Inode& inode, std::uint32_t chunk,
                   const std::vector<meta::Extent>& extents, std::uint64_t& end, bool& beyond) {
    const std::string key = keys_.extents(ino, chunk);
    if (extents.empty()) report(Code::kExtentsShape, key, "a chunk without extents");
    for (const meta::Extent& e : extents) {
      if (meta::extent_chunk(e.file_block) != chunk)
        report(Code::kExtentsShape, key,
               fmt::format("the extent at file block {} belongs to chunk {:08x}", e.file_block,
                           meta::extent_chunk(e.file_block)));
      check_extent(inode, key, e, end, beyond);
    }
  }

  void check_extent(const meta::Inode& inode, const std::string& key, const meta::Extent& e,
                    std::uint64_t& end, bool& beyond) {
    if (e.file_block < end)
      report(Code::kExtentsOverlap, key,
             fmt::format("the extent at file block {} begins before the end of another, {}",
                         e.file_block, end));
    end = std::max(end, e.file_end());
    if (!beyond && !e.unwritten() && e.file_end() > blocks_of(inode.size)) {
      beyond = true;  // once per file
      report(Code::kExtentBeyondSize, key,
             fmt::format("written up to file block {}, size {} has {} blocks", e.file_end(),
                         inode.size, blocks_of(inode.size)));
    }
  }

  const Image& image_;
  const meta::Keys& keys_;
  Findings& out_;
};

}  // namespace

void check_files(const Image& image, Findings& out) { Files(image, out).check(); }

}  // namespace etcfs::check
