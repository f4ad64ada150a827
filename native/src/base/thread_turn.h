// How the kernel takes turns between threads: moving much needs few long turns, moving little needs a turn soon.
#pragma once

namespace kvferry {

// Of the calling thread, until it is set again; cheap if nothing changes. While long, threads with ordinary turns that
// wake up need not wait until this one's is over; its share of the processor stays the same. Linux 6.12 and later;
// without effect elsewhere, and for threads with a policy of their own.
void take_long_turns(bool wanted);

}  // namespace kvferry
