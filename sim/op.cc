#include "sim/op.h"

#include <spdlog/fmt/fmt.h>

namespace etcfs::sim {

std::string_view op_name(OpKind kind) {
  switch (kind) {
#define ETCFS_SIM_OP(name) \
  case OpKind::name:       \
    return &#name[1];
    ETCFS_SIM_OPS
#undef ETCFS_SIM_OP
  }
  return "?";
}

std::string to_string(const Op& op) {
  std::string s = fmt::format("#{} node{} {}{} ino={:x}", op.number, op.node, op_name(op.kind),
                              op.cached ? "(cached)" : "", op.ino.v);
  if (!op.name.empty()) s += fmt::format(" '{}'", op.name.substr(0, 20));
  if (op.ino2 != Ino{}) s += fmt::format(" ino2={:x}", op.ino2.v);
  if (!op.name2.empty()) s += fmt::format(" '{}'", op.name2.substr(0, 20));
  if (op.offset || op.size) s += fmt::format(" [{}+{}]", op.offset, op.size);
  if (op.mode) s += fmt::format(" mode={:o}", op.mode);
  if (op.flags) s += fmt::format(" flags={:o}", op.flags);
  if (op.append) s += " append";
  if (op.kind == OpKind::kRename) s += fmt::format(" how={}", static_cast<int>(op.rename));
  if (op.set.size) s += fmt::format(" size:={}", *op.set.size);
  if (op.set.mode) s += fmt::format(" mode:={:o}", *op.set.mode);
  if (op.set.uid) s += fmt::format(" uid:={}", *op.set.uid);
  return s;
}

std::string to_string(const Op& op, const Outcome& out) {
  std::string s = to_string(op) + " -> ";
  if (out.error) return s + std::string(reason_name(*out.error));
  s += "ok";
  if (out.ino != Ino{}) s += fmt::format(" ino={:x}", out.ino.v);
  if (out.attr)
    s += fmt::format(" {{ino={:x} mode={:o} nlink={} size={}}}", out.attr->ino.v, out.attr->mode,
                     out.attr->nlink, out.attr->size);
  if (!out.bytes.empty()) {
    std::size_t hash = 14695981039346656037ull;
    for (unsigned char c : out.bytes) hash = (hash ^ c) * 1099511628211ull;
    s += fmt::format(" {} bytes #{:x}", out.bytes.size(), hash);
  }
  if (out.number) s += fmt::format(" n={}", out.number);
  for (auto& [name, item] : out.listing) s += fmt::format(" {}={:x}", name, item.first.v);
  return s;
}

}  // namespace etcfs::sim
