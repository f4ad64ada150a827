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
               const std::string& security = "") {
    std::array<int, 2> input{}, output{};
    if (::pipe2(input.data(), O_CLOEXEC) != 0 || ::pipe2(output.data(), O_CLOEXEC) != 0) return;
    stdin_.reset(input[1]);
    UniqueFd child_in(input[0]), child_out(output[1]), from_child(output[0]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, child_in.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, child_out.get(), STDOUT_FILENO);
    std::vector<std::string> words{KVFERRY_ENGINE_CHILD, std::to_string(length), memory, transports, security};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (::posix_spawn(&pid_, KVFERRY_ENGINE_CHILD, &actions, nullptr, arguments.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    child_out.reset();
    read_greeting(from_child.get());
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
  void reap() {
    if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  void read_greeting(int fd) {
    std::string line;
    char byte = 0;
    while (::read(fd, &byte, 1) == 1 && byte != '\n') line += byte;
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return;
    const auto endpoint = Endpoint::parse(line.substr(0, space));
    const auto node = NodeId::parse(line.substr(space + 1));
    if (!endpoint.ok() || !node.ok()) return;
    endpoint_ = *endpoint;
    node_ = *node;
  }

  pid_t pid_ = -1;
  UniqueFd stdin_;
  Endpoint endpoint_;
  NodeId node_;
};

}  // namespace kvferry::testing
