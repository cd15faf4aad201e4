#include "ctl/output.h"

#include <spdlog/fmt/fmt.h>

#include <charconv>
#include <cmath>
#include <ctime>

#include "base/assert.h"
#include "check/finding.h"

namespace etcfs::ctl {
namespace {

bool valid_utf8(std::string_view s) {
  for (std::size_t i = 0; i < s.size();) {
    const auto c = static_cast<unsigned char>(s[i]);
    const std::size_t n = c < 0x80                ? 1
                          : c >= 0xc2 && c < 0xe0 ? 2
                          : c >= 0xe0 && c < 0xf0 ? 3
                          : c >= 0xf0 && c < 0xf5 ? 4
                                                  : 0;
    if (n == 0 || i + n > s.size()) return false;
    for (std::size_t j = 1; j < n; ++j)
      if ((static_cast<unsigned char>(s[i + j]) & 0xc0) != 0x80) return false;
    if (n >= 3) {  // overlong forms, surrogates, beyond U+10FFFF
      const auto d = static_cast<unsigned char>(s[i + 1]);
      if ((c == 0xe0 && d < 0xa0) || (c == 0xed && d >= 0xa0) || (c == 0xf0 && d < 0x90) ||
          (c == 0xf4 && d >= 0x90))
        return false;
    }
    i += n;
  }
  return true;
}

}  // namespace

void Json::comma(std::string_view key) {
  if (!first_) out_ += ',';
  if (!closers_.empty()) out_ += '\n' + std::string(2 * closers_.size(), ' ');
  first_ = false;
  if (!key.empty()) {
    quote(key);
    out_ += ": ";
  }
}

void Json::quote(std::string_view value) {
  const std::string safe = valid_utf8(value) ? std::string(value) : check::printable(value);
  out_ += '"';
  for (char c : safe) {
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

Json& Json::begin_object(std::string_view key) {
  comma(key);
  out_ += '{';
  closers_ += '}';
  first_ = true;
  return *this;
}
Json& Json::begin_array(std::string_view key) {
  comma(key);
  out_ += '[';
  closers_ += ']';
  first_ = true;
  return *this;
}
Json& Json::end() {
  ETCFS_ASSERT(!closers_.empty());
  const char closer = closers_.back();
  closers_.pop_back();
  if (!first_) out_ += '\n' + std::string(2 * closers_.size(), ' ');
  out_ += closer;
  first_ = false;
  if (closers_.empty()) out_ += '\n';
  return *this;
}
Json& Json::field(std::string_view key, std::string_view value) {
  comma(key);
  quote(value);
  return *this;
}
Json& Json::field(std::string_view key, std::uint64_t value) {
  comma(key);
  out_ += std::to_string(value);
  return *this;
}
Json& Json::field(std::string_view key, bool value) {
  comma(key);
  out_ += value ? "true" : "false";
  return *this;
}
Json& Json::null_field(std::string_view key) {
  comma(key);
  out_ += "null";
  return *this;
}
Json& Json::item(std::string_view value) {
  comma({});
  quote(value);
  return *this;
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i >= widths.size()) widths.resize(i + 1);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  double value = 0;
  auto [rest, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc{} || value < 0) return std::nullopt;
  std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  if (unit.ends_with("iB"))
    unit.remove_suffix(2);
  else if (unit == "B")
    unit.remove_suffix(1);
  constexpr std::string_view kUnits = "KMGTPE";
  if (unit.size() == 1) {
    const char upper = static_cast<char>(unit[0] & ~0x20);
    const std::size_t at = kUnits.find(upper);
    if (at == std::string_view::npos) return std::nullopt;
    value = std::ldexp(value, 10 * static_cast<int>(at + 1));
  } else if (!unit.empty()) {
    return std::nullopt;
  }
  if (value >= 0x1p63 || value != std::floor(value)) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

std::string utc(WallTime time) {
  const auto seconds = static_cast<std::time_t>(time.sec);
  std::tm parts{};
  char text[64];
  if (::gmtime_r(&seconds, &parts) == nullptr ||
      std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
    return std::to_string(time.sec);
  return text;
}

std::string uuid_text(std::string_view bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += fmt::format("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(bytes[i])));
  }
  return out;
}

}  // namespace etcfs::ctl
