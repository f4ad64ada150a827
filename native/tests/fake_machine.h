// Unpacks a machine of tests/data into a folder that is deleted with the object.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvferry {

class FakeMachine {
 public:
  explicit FakeMachine(const std::string& name) {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvferry-machine-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    std::ifstream list(std::string(KVFERRY_TEST_DATA) + "/" + name);
    EXPECT_TRUE(list.good()) << name;
    for (std::string line; std::getline(list, line);) unpack(line);
  }
  ~FakeMachine() { std::filesystem::remove_all(root_); }
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  const std::filesystem::path& root() const { return root_; }

 private:
  void unpack(const std::string& line) const {
    const std::size_t equals = line.find(" = "), arrow = line.find(" -> ");
    if (line.starts_with('#') || (equals == std::string::npos && arrow == std::string::npos)) return;
    const std::filesystem::path path = root_ / line.substr(0, std::min(equals, arrow));
    std::filesystem::create_directories(path.parent_path());
    if (equals == std::string::npos) {
      std::filesystem::create_symlink(line.substr(arrow + 4), path);
      return;
    }
    std::string content = line.substr(equals + 3) + "\n";
    std::replace(content.begin(), content.end(), '|', '\n');
    std::ofstream(path) << content;
  }

  std::filesystem::path root_;
};

}  // namespace kvferry
