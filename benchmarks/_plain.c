// What KVFerry is measured against: memcpy, and sockets without any protocol. Compiled by _harness.py.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

void copy_blocks(char* to, const char* from, const uint64_t* to_offsets, const uint64_t* from_offsets, size_t count,
                 size_t bytes) {
  for (size_t i = 0; i < count; ++i) memcpy(to + to_offsets[i], from + from_offsets[i], bytes);
}

static int send_all(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return -1;
    data += sent;
    bytes -= (size_t)sent;
  }
  return 0;
}

static int receive_all(int fd, char* data, size_t bytes) {
  while (bytes > 0) {
    ssize_t got = recv(fd, data, bytes, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    data += got;
    bytes -= (size_t)got;
  }
  return 0;
}

static void no_delay(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Answers each 8-byte number with that many bytes, until the other side closes.
void serve_stream(int fd, const char* data) {
  uint64_t wanted;
  no_delay(fd);
  while (receive_all(fd, (char*)&wanted, sizeof wanted) == 0) {
    if (send_all(fd, data, wanted) != 0) return;
  }
}

struct part {
  int fd;
  char* to;
  uint64_t bytes;
  int result;
};

static void* fetch_part(void* argument) {
  struct part* part = argument;
  part->result = send_all(part->fd, (const char*)&part->bytes, sizeof part->bytes);
  if (part->result == 0) part->result = receive_all(part->fd, part->to, part->bytes);
  return NULL;
}

// Fetches `bytes` in equal parts over one or two streams.
int fetch(const int* fds, int streams, char* to, uint64_t bytes) {
  struct part parts[2];
  pthread_t second;
  uint64_t first_bytes = streams == 2 ? bytes / 2 : bytes;
  parts[0] = (struct part){fds[0], to, first_bytes, 0};
  no_delay(fds[0]);
  if (streams == 2) {
    parts[1] = (struct part){fds[1], to + first_bytes, bytes - first_bytes, 0};
    no_delay(fds[1]);
    if (pthread_create(&second, NULL, fetch_part, &parts[1]) != 0) return -1;
  }
  fetch_part(&parts[0]);
  if (streams == 2) {
    pthread_join(second, NULL);
    if (parts[1].result != 0) return -1;
  }
  return parts[0].result;
}
