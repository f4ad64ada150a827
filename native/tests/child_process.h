// Starts engine_child and ends it in every way a process can end.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "kvferry/engine.h"

namespace kvferry::testing {

class ChildProcess {
 public:
  ChildProcess(std::uint64_t length, const std::string& memory, const std::string& transports,
               const std::string& security = "")
      : ChildProcess(KVFERRY_ENGINE_CHILD, {std::to_string(length), memory, transports, security}) {}
  // Any program that prints "ENDPOINT NODE_ID" as its first line and ends with its input.
  ChildProcess(const std::string& program, std::vector<std::string> words) {
    std::array<int, 2> input{}, output{};
    if (::pipe2(input.data(), O_CLOEXEC) != 0 || ::pipe2(output.data(), O_CLOEXEC) != 0) return;
    stdin_.reset(input[1]);
    stdout_.reset(output[0]);
    UniqueFd child_in(input[0]), child_out(output[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, child_in.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, child_out.get(), STDOUT_FILENO);
    words.insert(words.begin(), program);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    child_out.reset();
    read_greeting(read_line());
  }
  ~ChildProcess() {
    if (pid_ > 0) signal(SIGKILL);
    reap();
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  bool running() const { return pid_ > 0 && !node_.is_nil(); }
  const Endpoint& endpoint() const { return endpoint_; }
  const NodeId& node_id() const { return node_; }
  void signal(int number) const {
    if (pid_ <= 0) return;
    ::kill(pid_, number);                                        // never the group, nor everybody
    if (number == SIGSTOP) ::waitpid(pid_, nullptr, WUNTRACED);  // its threads stop one after the other
  }
  void finish() {  // the orderly way
    stdin_.reset();
    reap();
  }
  void tell(const std::string& line) const {
    const std::string text = line + '\n';
    EXPECT_EQ(::write(stdin_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string read_line() const {
    std::string line;
    char byte = 0;
    while (::read(stdout_.get(), &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }
  void reap() {
    if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  void read_greeting(const std::string& line) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return;
    const auto endpoint = Endpoint::parse(line.substr(0, space));
    const auto node = NodeId::parse(line.substr(space + 1));
    if (!endpoint.ok() || !node.ok()) return;
    endpoint_ = *endpoint;
    node_ = *node;
  }

  pid_t pid_ = -1;
  UniqueFd stdin_, stdout_;
  Endpoint endpoint_;
  NodeId node_;
};

}  // namespace kvferry::testing
