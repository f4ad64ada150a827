#include "base/signal_hook.h"

#include <utility>

namespace kvferry {
namespace {

thread_local const std::function<void()>* hook_of_thread = nullptr;

}  // namespace

SignalHook::SignalHook(std::function<void()> came) : came_(std::move(came)) { hook_of_thread = &came_; }

SignalHook::~SignalHook() { hook_of_thread = nullptr; }

bool SignalHook::lives() { return hook_of_thread != nullptr; }

void SignalHook::call() {
  if (hook_of_thread != nullptr) (*hook_of_thread)();
}

}  // namespace kvferry
