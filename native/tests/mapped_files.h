// Files that a test opens with an engine and sees as memory, too.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "kvferry/engine.h"

namespace kvferry::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvferry-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

class MappedFiles {
 public:
  MappedFiles() = default;
  ~MappedFiles() {
    for (const auto& view : views_) ::munmap(view.data(), view.size());
  }
  MappedFiles(const MappedFiles&) = delete;
  MappedFiles& operator=(const MappedFiles&) = delete;

  // A new file of the engine's; `view`: its bytes, shared with the file.
  Result<RegionInfo> open(Engine& engine, std::uint64_t length, std::uint8_t access, std::span<std::byte>* view,
                          DirectIo direct = DirectIo::kAuto) {
    const std::string path = folder_.file(std::to_string(views_.size()));
    FileOptions options;
    options.length = length;
    options.create = true;
    options.access = access;
    options.direct = direct;
    auto region = engine.open_file(path, options);
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    void* memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) return {Code::kInternal, "cannot map " + path};
    *view = {static_cast<std::byte*>(memory), length};
    views_.push_back(*view);
    return region;
  }

 private:
  TemporaryFolder folder_;
  std::vector<std::span<std::byte>> views_;
};

}  // namespace kvferry::testing
