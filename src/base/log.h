// Logging: a constant message plus fields, a line per decision, not per request. ERROR means a broken
// invariant or that the operator must act; a simulated run fails on one.
//   ETCFS_LOG_INFO("family lock granted", field("family", f), field("modes", m));
#pragma once

#include <spdlog/fmt/fmt.h>

#include <functional>
#include <string>
#include <string_view>

namespace etcfs::log {

enum class Level { kDebug, kInfo, kWarn, kError };

struct Field {
  std::string text;  // " name=value"
};
template <class T>
Field field(std::string_view name, const T& value) {
  return {fmt::format(" {}={}", name, value)};
}

void set_level(Level level);
bool enabled(Level level);
// Destination: standard error by default.
void set_sink(std::function<void(Level, const std::string&)> sink);
void write(Level level, std::string_view message, std::initializer_list<Field> fields);
unsigned long error_count();  // ERROR lines since start

}  // namespace etcfs::log

#define ETCFS_LOG_(level, ...)                                            \
  do {                                                                    \
    if (::etcfs::log::enabled(level)) ::etcfs::log::write_(level, __VA_ARGS__); \
  } while (0)
#define ETCFS_LOG_DEBUG(...) ETCFS_LOG_(::etcfs::log::Level::kDebug, __VA_ARGS__)
#define ETCFS_LOG_INFO(...) ETCFS_LOG_(::etcfs::log::Level::kInfo, __VA_ARGS__)
#define ETCFS_LOG_WARN(...) ETCFS_LOG_(::etcfs::log::Level::kWarn, __VA_ARGS__)
#define ETCFS_LOG_ERROR(...) ETCFS_LOG_(::etcfs::log::Level::kError, __VA_ARGS__)

namespace etcfs::log {
template <class... F>
void write_(Level level, std::string_view message, const F&... fields) {
  write(level, message, {fields...});
}
}  // namespace etcfs::log
