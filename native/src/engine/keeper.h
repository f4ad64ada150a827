// The one timer of an engine: pings silent peers and ends transfers whose time is up. Its thread sleeps until the next
// of these is due.
#pragma once

#include <condition_variable>
#include <mutex>

#include "kvferry/types.h"

namespace kvferry {

struct EngineCore;

class Keeper {
 public:
  void run(EngineCore& core);      // the keeper thread: until stop()
  void expect(Deadline deadline);  // a transfer with this deadline was submitted; cheap if later than the next tick
  void stop();

 private:
  Deadline tick(EngineCore& core);  // returns when the next one is due

  std::mutex mutex_;
  std::condition_variable wake_;
  Deadline next_ = Deadline::min();  // guarded by mutex_, as is stopped_
  bool stopped_ = false;
};

}  // namespace kvferry
