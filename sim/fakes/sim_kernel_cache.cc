#include "sim/fakes/sim_kernel_cache.h"

#include <algorithm>

namespace etcfs::sim {

SimKernelCache::SimKernelCache(rt::Runtime& runtime, SimKernelOptions options)
    : runtime_(runtime), options_(options) {}

void SimKernelCache::note(Call call) {
  calls_.push_back(std::move(call));
  if (calls_.size() > 10'000) calls_.erase(calls_.begin(), calls_.begin() + 5'000);
  if (hook_) {
    const Call copy = calls_.back();  // the hook may block while others call
    hook_(copy);
  }
}

void SimKernelCache::within_latency(const std::function<void()>& drop) {
  if (options_.latency_max == Nanos::zero()) return drop();
  const auto most = static_cast<std::uint64_t>(options_.latency_max.count());
  rt::sleep_for(Nanos(runtime_.random_below(most + 1) / 2));
  drop();
  rt::sleep_for(Nanos(runtime_.random_below(most + 1) / 2));
}

bool SimKernelCache::expire_names(Ino directory, std::vector<std::string> names, Time deadline) {
  note({Call::Type::kExpireNames, directory, names, 0, 0});
  if (options_.blocked_names > 0 && runtime_.random_below(10'000) < options_.blocked_names) {
    rt::sleep_until(deadline);
    return false;
  }
  within_latency([&] {
    for (const std::string& name : names) names_.erase({directory, name});
  });
  return true;
}

void SimKernelCache::drop(Ino ino, std::uint64_t offset, std::uint64_t length) {
  attrs_.erase(ino);
  listings_.erase(ino);
  auto it = pages_.find(ino);
  if (it == pages_.end()) return;
  const std::uint64_t end = length == 0 ? UINT64_MAX : offset + length;
  std::erase_if(it->second, [&](const auto& page) {
    const std::uint64_t begin = page.first * kBlockBytes;
    return begin < end && begin + kBlockBytes > offset;
  });
}

void SimKernelCache::invalidate(Ino ino, std::uint64_t offset, std::uint64_t length) {
  note({Call::Type::kInvalidate, ino, {}, offset, length});
  within_latency([&] { drop(ino, offset, length); });
}

void SimKernelCache::invalidate_all(std::vector<Ino> inodes) {
  for (Ino ino : inodes) note({Call::Type::kInvalidate, ino, {}, 0, 0});
  for (Ino ino : inodes) within_latency([&] { drop(ino, 0, 0); });
}

void SimKernelCache::invalidate_attributes(Ino ino) {
  note({Call::Type::kInvalidateAttributes, ino, {}, 0, 0});
  within_latency([&] { attrs_.erase(ino); });
}

void SimKernelCache::store_last_byte(Ino ino, std::uint64_t size, std::byte last) {
  note({Call::Type::kStoreLastByte, ino, {}, size, 0});
  if (auto it = attrs_.find(ino); it != attrs_.end())
    it->second.attr.size = std::max(it->second.attr.size, size);
  auto it = pages_.find(ino);
  if (it == pages_.end() || size == 0) return;
  auto page = it->second.find((size - 1) / kBlockBytes);
  if (page == it->second.end()) return;
  const std::size_t at = (size - 1) % kBlockBytes;
  if (page->second.size() <= at) page->second.resize(at + 1, '\0');
  page->second[at] = static_cast<char>(last);
}

void SimKernelCache::prune(std::vector<Ino> inodes) {
  for (Ino ino : inodes) {
    note({Call::Type::kPrune, ino, {}, 0, 0});
    drop(ino, 0, 0);
    std::erase_if(names_, [&](const auto& n) { return n.second.ino == ino; });
  }
}

void SimKernelCache::took_entry(Ino parent, const std::string& name, const fs::Entry& entry) {
  if (entry.entry_timeout > Nanos::zero()) {
    names_[{parent, name}] = {entry.ino, runtime_.now() + entry.entry_timeout};
  } else {
    names_.erase({parent, name});
  }
  if (entry.ino != Ino{}) took_attr(entry.attr, entry.attr_timeout);
}

void SimKernelCache::took_attr(const fs::Attr& attr, Nanos timeout) {
  if (timeout <= Nanos::zero() || changing_.contains(attr.ino)) {
    attrs_.erase(attr.ino);
    return;
  }
  attrs_[attr.ino] = {attr, runtime_.now() + timeout};
  // The kernel cuts its pages to the size that it learns.
  auto it = pages_.find(attr.ino);
  if (it == pages_.end() || (attr.mode & 0170000) != 0100000) return;
  auto& pages = it->second;
  pages.erase(pages.lower_bound(blocks_of(attr.size)), pages.end());
  if (attr.size % kBlockBytes == 0) return;
  auto last = pages.find(attr.size / kBlockBytes);
  if (last != pages.end() && last->second.size() > attr.size % kBlockBytes)
    last->second.resize(attr.size % kBlockBytes);
}

void SimKernelCache::took_pages(Ino ino, std::uint64_t offset, const std::string& bytes,
                                bool end_of_file) {
  if (changing_.contains(ino)) return;
  auto& pages = pages_[ino];
  for (std::uint64_t page = blocks_of(offset);; page++) {
    const std::uint64_t begin = page * kBlockBytes - offset;
    if (begin >= bytes.size()) break;
    const std::size_t n = std::min<std::size_t>(kBlockBytes, bytes.size() - begin);
    if (n < kBlockBytes && !end_of_file) break;
    pages[page] = bytes.substr(begin, n);
  }
}

void SimKernelCache::wrote_pages(Ino ino, std::uint64_t offset, const std::string& bytes) {
  auto& pages = pages_[ino];
  for (std::size_t done = 0; done < bytes.size();) {
    const std::uint64_t page = (offset + done) / kBlockBytes;
    const std::size_t at = (offset + done) % kBlockBytes;
    const std::size_t n = std::min<std::size_t>(kBlockBytes - at, bytes.size() - done);
    auto it = pages.find(page);
    if (n == kBlockBytes) {
      pages[page] = bytes.substr(done, n);
    } else if (it != pages.end()) {
      if (it->second.size() < at + n) it->second.resize(at + n, '\0');
      it->second.replace(at, n, bytes, done, n);
    }
    done += n;
  }
}

void SimKernelCache::took_listing(Ino ino, Listing listing) { listings_[ino] = std::move(listing); }

std::optional<Ino> SimKernelCache::find_name(Ino parent, const std::string& name) const {
  auto it = names_.find({parent, name});
  if (it == names_.end() || it->second.until <= runtime_.now()) return std::nullopt;
  return it->second.ino;
}

std::optional<fs::Attr> SimKernelCache::find_attr(Ino ino) const {
  auto it = attrs_.find(ino);
  if (it == attrs_.end() || it->second.until <= runtime_.now()) return std::nullopt;
  if (changing_.contains(ino)) return std::nullopt;
  return it->second.attr;
}

std::optional<std::string> SimKernelCache::find_bytes(Ino ino, std::uint64_t offset,
                                                      std::size_t size) const {
  const auto attr = find_attr(ino);
  const auto file = pages_.find(ino);
  if (!attr || file == pages_.end()) return std::nullopt;
  std::string bytes;
  const std::uint64_t end = std::min<std::uint64_t>(offset + size, attr->size);
  for (std::uint64_t at = offset; at < end;) {
    auto page = file->second.find(at / kBlockBytes);
    if (page == file->second.end()) return std::nullopt;
    const std::size_t begin = at % kBlockBytes;
    const std::size_t n = std::min<std::uint64_t>(kBlockBytes - begin, end - at);
    for (std::size_t i = begin; i < begin + n; i++)
      bytes += i < page->second.size() ? page->second[i] : '\0';
    at += n;
  }
  return bytes;
}

const SimKernelCache::Listing* SimKernelCache::find_listing(Ino ino) const {
  auto it = listings_.find(ino);
  return it == listings_.end() ? nullptr : &it->second;
}

void SimKernelCache::begin_change(Ino ino) { changing_[ino]++; }

void SimKernelCache::end_change(Ino ino) {
  if (--changing_[ino] == 0) changing_.erase(ino);
}

void SimKernelCache::forget_name(Ino parent, const std::string& name) {
  names_.erase({parent, name});
}

}  // namespace etcfs::sim
