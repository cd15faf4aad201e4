// A finding: one thing that is wrong with an image, for people and for programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace etcfs::check {

enum class Code : int {
#define ETCFS_FINDING(name, code, text) name,
#include "check/findings.def"
#undef ETCFS_FINDING
};

std::string_view code_name(Code code);     // "link-count"
std::string_view code_meaning(Code code);  // one line

struct Finding {
  Code code;
  std::string key;      // the etcd key at fault, raw bytes; of two, the later one
  std::string message;  // what is there and what should be; printable ASCII
};
using Findings = std::vector<Finding>;

// Keys carry raw bytes (names): everything outside printable ASCII, and '\', becomes \xNN.
std::string printable(std::string_view bytes);
std::string to_string(const Finding& finding);  // "code key: message"

}  // namespace etcfs::check
