// One line per event: `event key=value key=value`. Thread-safe. The sink is called without any lock held, from any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "kvferry/status.h"

namespace kvferry {

enum class LogLevel : std::uint8_t { kDebug = 10, kInfo = 20, kWarning = 30, kError = 40 };  // Python's numbers

struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  LogField(std::string_view k, const Status& v) : key(k), value(v.to_string()) {}
  template <typename Integer>
  requires std::is_integral_v<Integer> LogField(std::string_view k, Integer v) : key(k), value(std::to_string(v)) {}
  std::string_view key;
  std::string value;
};

using LogSink = std::function<void(LogLevel, std::string_view line)>;

// An empty sink restores the default: lines of the set level and above to standard error.
// When it returns, the sink it replaced may still be running in another thread: a sink owns what it needs.
void set_log_sink(LogSink sink);
void set_log_level(LogLevel level);  // default kWarning
bool log_enabled(LogLevel level);
// Values with spaces, quotes or control characters are quoted and escaped, so that one event stays one line.
void log_event(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

}  // namespace kvferry
