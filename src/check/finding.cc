#include "check/finding.h"

namespace etcfs::check {

std::string_view code_name(Code code) {
  switch (code) {
#define ETCFS_FINDING(name, code_text, text) \
  case Code::name:                           \
    return code_text;
#include "check/findings.def"
#undef ETCFS_FINDING
  }
  return "?";
}

std::string_view code_meaning(Code code) {
  switch (code) {
#define ETCFS_FINDING(name, code_text, text) \
  case Code::name:                           \
    return text;
#include "check/findings.def"
#undef ETCFS_FINDING
  }
  return "?";
}

std::string printable(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size());
  for (char c : bytes) {
    auto u = static_cast<unsigned char>(c);
    if (u >= 0x20 && u < 0x7f && c != '\\') {
      out += c;
    } else {
      out += "\\x";
      out += kDigits[u >> 4];
      out += kDigits[u & 15];
    }
  }
  return out;
}

std::string to_string(const Finding& finding) {
  std::string out(code_name(finding.code));
  out += ' ';
  out += printable(finding.key);
  out += ": ";
  out += finding.message;
  return out;
}

}  // namespace etcfs::check
