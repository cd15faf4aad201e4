// prefix_end: the bound of "every key with this prefix" in etcd's [key, end) ranges.
#include "meta/kv.h"

namespace etcfs::meta {

std::string prefix_end(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');  // etcd: everything from the key on
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

}  // namespace etcfs::meta
