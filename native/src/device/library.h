// A shared library found at run time. What it offers may be absent; the error then says what to install.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kvferry/status.h"

namespace kvferry {

class Library {
 public:
  // Tries the names in order. kUnavailable with the loader's reason for the last one.
  static Result<Library> open(const std::vector<std::string>& names);
  Library(Library&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), name_(std::move(other.name_)) {}
  Library& operator=(Library&&) = delete;
  ~Library();

  const std::string& name() const { return name_; }
  void* find(const char* symbol) const;  // nullptr: the library lacks it

  // Sets *function, or kUnsupported naming library and symbol: it is another version than needed.
  template <typename Function>
  Status bind(Function** function, const char* symbol) const {
    *function = reinterpret_cast<Function*>(find(symbol));
    return *function != nullptr ? Status() : lacks(symbol);
  }

 private:
  Library(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  Status lacks(const char* symbol) const;

  void* handle_;
  std::string name_;
};

}  // namespace kvferry
