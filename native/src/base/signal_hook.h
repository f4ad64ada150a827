// Lets a thread of the application that waits in here find out that a signal came: Python runs its handlers (Ctrl-C)
// only when native code asks it to. While a hook lives, waits of its own thread call it after a signal, and twice a
// second, since one may come just before a wait begins. It must not block. One at a time per thread.
#pragma once

#include <functional>

namespace kvferry {

class SignalHook {
 public:
  explicit SignalHook(std::function<void()> came);
  ~SignalHook();
  SignalHook(const SignalHook&) = delete;
  SignalHook& operator=(const SignalHook&) = delete;

  static bool lives();  // whether this thread has one
  static void call();   // by a wait

 private:
  const std::function<void()> came_;
};

}  // namespace kvferry
