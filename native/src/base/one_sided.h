// Marks accesses to registered memory on behalf of a peer. The owner's program does not take part in them; it is kept
// in order with them by messages of the application, through the kernel, which the thread sanitizer cannot follow. As
// with a network card that writes by itself, only the application can race here, not the engine.
#pragma once

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace kvferry {

class OneSidedAccess {  // while it lives, in this thread
 public:
#if defined(__SANITIZE_THREAD__)
  OneSidedAccess() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~OneSidedAccess() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  OneSidedAccess() {}   // NOLINT: not trivial, so that it does not count as an unused variable
  ~OneSidedAccess() {}  // NOLINT
#endif
  OneSidedAccess(const OneSidedAccess&) = delete;
  OneSidedAccess& operator=(const OneSidedAccess&) = delete;
};

}  // namespace kvferry
