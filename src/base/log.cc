#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

namespace etcfs::log {
namespace {
std::atomic<Level> threshold{Level::kInfo};
std::atomic<unsigned long> errors{0};
std::function<void(Level, const std::string&)>& sink() {
  static std::function<void(Level, const std::string&)> s;
  return s;
}
spdlog::logger& logger() {
  static auto l = [] {
    auto made = spdlog::stderr_logger_mt("etcfs");
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
  return *l;
}
spdlog::level::level_enum spd(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarn: return spdlog::level::warn;
    case Level::kError: break;
  }
  return spdlog::level::err;
}
}  // namespace

void set_level(Level level) { threshold = level; }
bool enabled(Level level) { return level >= threshold.load(std::memory_order_relaxed); }
void set_sink(std::function<void(Level, const std::string&)> s) { sink() = std::move(s); }
unsigned long error_count() { return errors; }

void write(Level level, std::string_view message, std::initializer_list<Field> fields) {
  if (level == Level::kError) errors++;
  std::string line(message);
  for (const Field& f : fields) line += f.text;
  if (sink()) {
    sink()(level, line);
  } else {
    logger().log(spd(level), line);
  }
}

}  // namespace etcfs::log
