#include "transport_conformance.h"

namespace kvferry::testing {

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         ::testing::Values(Setup{"plain", "tcp", false, "", false, ""},
                                           Setup{"arena", "tcp", true, "", false, ""},
                                           Setup{"checksum", "tcp", false, "", true, ""},
                                           Setup{"fault", "tcp", false, "*:delay=1", false, ""},
                                           Setup{"secret", "tcp", false, "", false, "secret"},
                                           Setup{"tls", "tcp", false, "", false, "tls"}),
                         setup_name);

}  // namespace kvferry::testing
