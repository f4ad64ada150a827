#include <pybind11/stl.h>

#include <memory>

#include "errors.h"
#include "log_queue.h"
#include "module.h"
#include "seconds.h"

namespace kvferry::python {

void LogQueue::push(LogLevel level, std::string_view line) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    if (lines_.size() >= capacity_) {
      ++dropped_;
      return;
    }
    lines_.emplace_back(static_cast<int>(level), line);
  }
  changed_.notify_one();
}

std::vector<LogQueue::Line> LogQueue::drain(milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return closed_ || !lines_.empty(); });
  std::vector<Line> lines(std::make_move_iterator(lines_.begin()), std::make_move_iterator(lines_.end()));
  lines_.clear();
  if (dropped_ > 0) {
    lines.emplace_back(static_cast<int>(LogLevel::kWarning), "log_lines_dropped count=" + std::to_string(dropped_));
    dropped_ = 0;
  }
  return lines;
}

void LogQueue::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void bind_log(py::module_& module, Blocking& blocking) {
  py::class_<LogQueue, std::shared_ptr<LogQueue>> cls(module, "LogQueue",
                                                      "Native log lines, bounded; to be drained by one thread.");
  cls.def(py::init<std::size_t>(), py::arg("capacity"))
      .def(
          "install",
          [](const std::shared_ptr<LogQueue>& self) {
            set_log_sink([self](LogLevel level, std::string_view line) { self->push(level, line); });
          },
          "Make this queue take every native log line of the process from now on.")
      .def(
          "push",
          [](LogQueue& self, int level, const std::string& line) { self.push(static_cast<LogLevel>(level), line); },
          py::arg("level"), py::arg("line"))
      .def("close", &LogQueue::close, "End the wait of drain(); later lines are dropped.");
  cls.def(
      "drain",
      [](LogQueue& self, double timeout_s) {
        std::vector<LogQueue::Line> lines;
        {
          const GilRelease unlocked;
          lines = self.drain(to_milliseconds(timeout_s));
        }
        std::vector<std::pair<int, py::str>> decoded;
        decoded.reserve(lines.size());
        for (const auto& [level, line] : lines) decoded.emplace_back(level, text(line));
        return decoded;
      },
      py::arg("timeout_s"), "Wait for lines; return them as (level, text), levels as in Python's logging.");
  blocking.note("LogQueue.drain");
  module.def(
      "set_log_level", [](int level) { set_log_level(static_cast<LogLevel>(level)); }, py::arg("level"),
      "Drop native log lines below this level (10 debug, 20 info, 30 warning, 40 error).");
}

}  // namespace kvferry::python
