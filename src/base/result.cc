#include "base/result.h"

#include <cerrno>
#include <iterator>

namespace etcfs {
namespace {
struct Row {
  std::string_view name;
  int err;
  std::string_view text;
};
constexpr Row kRows[] = {
#define ETCFS_ERROR(name, err, text) {#name, err, text},
#include "base/errors.def"
#undef ETCFS_ERROR
};
const Row& row(Reason reason) {
  auto i = static_cast<std::size_t>(reason);
  ETCFS_ASSERT(i < std::size(kRows));
  return kRows[i];
}
}  // namespace

std::string_view reason_name(Reason reason) { return row(reason).name; }
std::string_view reason_text(Reason reason) { return row(reason).text; }
int reason_errno(Reason reason) { return row(reason).err; }

}  // namespace etcfs
