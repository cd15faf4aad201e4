// What the commands print: tables and sizes for people, JSON for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace etcfs::ctl {

// Writes one JSON document. Keys are ASCII; string values that are not UTF-8 are written as
// check::printable() has them.
class Json {
 public:
  Json& begin_object(std::string_view key = {});
  Json& begin_array(std::string_view key = {});
  Json& end();  // of the innermost object or array
  Json& field(std::string_view key, std::string_view value);
  Json& field(std::string_view key, const char* value) {
    return field(key, std::string_view(value));
  }
  Json& field(std::string_view key, std::uint64_t value);
  Json& field(std::string_view key, bool value);
  Json& null_field(std::string_view key);
  Json& item(std::string_view value);
  const std::string& text() const { return out_; }  // all closed; ends with a newline

 private:
  void comma(std::string_view key);
  void quote(std::string_view value);
  std::string out_;
  std::string closers_;  // what ends each open level
  bool first_ = true;
};

// Columns are as wide as their widest cell; the last is not padded.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string human_bytes(std::uint64_t bytes);  // "512 B", "16.0 MiB", "1.5 TiB"
// 4096, 64K, 256M, 1.5G, 16MiB, 1T (powers of 1024); nullopt when it is none or has a fraction of a
// byte.
std::optional<std::uint64_t> parse_bytes(std::string_view text);
std::string utc(WallTime time);                 // "2026-11-30T20:47:16Z"
std::string uuid_text(std::string_view bytes);  // 8-4-4-4-12, of 16 bytes

}  // namespace etcfs::ctl
