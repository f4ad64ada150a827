// Who reads a connection: its own thread, or for a while a caller that waits for an answer, to whom the answer then
// comes without a hand-over between threads. Thread-safe.
#pragma once

#include <condition_variable>
#include <mutex>

#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry {

class ReadingTurn {
 public:
  // A caller waits for something to come. True: it reads until stop_reading(); false: somebody else does.
  bool enter();
  // It does not read any more. `served`: nor wait for anything. `end`: not OK if the connection is of no more use,
  // which its own thread learns.
  void stop_reading(bool served, const Status& end);
  void leave();  // it does not wait any more

  // By the connection's own thread. Waits while callers read, and a moment longer: they often come again at once.
  // False: a caller said that the connection has ended, end() says why.
  bool rest();
  bool take();  // false: a caller was faster
  void give();
  // Waits for the last caller to stop; none reads afterwards. The connection is shut down.
  void close();
  Status end() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool reading_ = false;  // somebody, whoever it is; all guarded by mutex_
  bool closed_ = false;
  int waiting_ = 0;                // callers, the one that reads included
  Clock::time_point last_read_{};  // by a caller
  Status end_;
};

}  // namespace kvferry
