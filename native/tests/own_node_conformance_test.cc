#include "transport_conformance.h"

namespace kvferry::testing {

Setup own_node(const std::string& name, const std::string& transport, const std::string& fault_plan, bool io_uring) {
  return {name, transport, false, fault_plan, false, "", true, io_uring};
}

INSTANTIATE_TEST_SUITE_P(OwnNode, TransportConformance,
                         ::testing::Values(own_node("memory", "local", "", true), own_node("file", "file", "", true),
                                           own_node("file_fault", "file", "*:delay=1", true),
                                           own_node("file_plain_calls", "file", "", false)),
                         setup_name);

}  // namespace kvferry::testing
