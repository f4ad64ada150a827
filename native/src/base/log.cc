#include "base/log.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>

namespace kvferry {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kWarning};

struct SinkHolder {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;
};

SinkHolder& holder() {
  static auto* const instance = new SinkHolder;  // never destroyed: threads may log while the process ends
  return *instance;
}

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

bool is_plain(unsigned char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '='; }

void append_value(std::string& line, std::string_view value) {
  if (!value.empty() &&
      std::all_of(value.begin(), value.end(), [](char c) { return is_plain(static_cast<unsigned char>(c)); })) {
    line += value;
    return;
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  line += '"';
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      line += '\\';
      line += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      line += "\\x";
      line += kDigits[byte >> 4];
      line += kDigits[byte & 15];
    } else {
      line += c;
    }
  }
  line += '"';
}

}  // namespace

void set_log_sink(LogSink sink) {
  auto fresh = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  SinkHolder& h = holder();
  const std::lock_guard lock(h.mutex);
  h.sink.swap(fresh);  // the old one is destroyed after the lock is dropped, or by the thread that still runs it
}

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

void log_event(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (!log_enabled(level)) return;
  std::string line(event);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    append_value(line, field.value);
  }
  std::shared_ptr<const LogSink> sink;
  {
    SinkHolder& h = holder();
    const std::lock_guard lock(h.mutex);
    sink = h.sink;
  }
  if (sink) {
    (*sink)(level, line);
    return;
  }
  const std::string text = "kvferry " + std::string(level_name(level)) + " " + line + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace kvferry
