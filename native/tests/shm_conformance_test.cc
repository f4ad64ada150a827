#include "transport_conformance.h"

namespace kvferry::testing {

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance,
                         ::testing::Values(Setup{"foreign", "shm", false, "", false, ""},
                                           Setup{"arena", "shm", true, "", false, ""},
                                           Setup{"foreign_fault", "shm", false, "*:delay=1", false, ""},
                                           Setup{"arena_fault", "shm", true, "*:delay=1", false, ""}),
                         setup_name);

}  // namespace kvferry::testing
