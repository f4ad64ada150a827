#include "device/library.h"

#include <dlfcn.h>

namespace kvferry {

Result<Library> Library::open(const std::vector<std::string>& names) {
  std::string reason;
  for (const std::string& name : names) {
    if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) return Library(handle, name);
    if (const char* text = ::dlerror(); text != nullptr) reason = text;
  }
  return {Code::kUnavailable, reason};
}

Library::~Library() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* Library::find(const char* symbol) const { return ::dlsym(handle_, symbol); }

Status Library::lacks(const char* symbol) const {
  return {Code::kUnsupported, name_ + " has no " + symbol + ": another version of it is needed"};
}

}  // namespace kvferry
