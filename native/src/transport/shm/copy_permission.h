// Lets peers of our user copy from and to the memory of this process while it lives, where the yama module lets only
// ancestors. The kernel keeps one exception per process: with several peers it must name any process, and it is the one
// state here that all engines of the process share. Thread-safe.
#pragma once

namespace kvferry {

class CopyPermission {
 public:
  CopyPermission();
  ~CopyPermission();  // the last one takes the exception back, also one that the program made for itself
  CopyPermission(const CopyPermission&) = delete;
  CopyPermission& operator=(const CopyPermission&) = delete;

  static int holders();
};

}  // namespace kvferry
