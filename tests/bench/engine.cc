// A server that answers as SGLang does, and fast enough never to be what is measured: one thread, epoll.
//
//   engine PORT [POOL_TOKENS]
//
// A request says in its first kilobytes of text what it wants, between double brackets:
//   [[chunks=120 interval_us=25000]]   streamed chunks and the pause between them; 0: as fast as they are taken
// Every streamed chunk carries the moment it was made as "@nanoseconds@" (CLOCK_MONOTONIC).

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

using std::string;
using std::string_view;

namespace {

constexpr size_t kReadBytes = 256 * 1024;
constexpr size_t kMarkBytes = 4096;      // where the wish of a request is looked for
constexpr size_t kWaitingBytes = 65536;  // what may wait to be written before a flat-out stream pauses
constexpr long kTokenBytes = 4;

long nanoseconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000L + time.tv_nsec;
}

struct Connection {
  int fd = -1;
  long serial = 0;  // tells a new connection from an old one of the same number
  string in, out;
  size_t written = 0;
  bool streaming = false, wants_to_write = false;
  long chunks_left = 0, chunks_sent = 0, interval_ns = 0, prompt_tokens = 0;
};

struct Due {
  long at;
  int fd;
  long serial;
  bool operator<(const Due& other) const { return at > other.at; }
};

int poller = -1;
long pool_tokens = 186'624, serials = 0, running = 0, used_tokens = 0, prefilled_tokens = 0;
std::map<int, Connection*> connections;
std::vector<int> flat_out;
std::priority_queue<Due> timers;

void drop(Connection* c) {
  if (c->streaming) {
    running--;
    used_tokens -= c->prompt_tokens + c->chunks_sent;
  }
  flat_out.erase(std::remove(flat_out.begin(), flat_out.end(), c->fd), flat_out.end());
  connections.erase(c->fd);
  close(c->fd);
  delete c;
}

// False: the connection is gone.
bool flush(Connection* c) {
  while (c->written < c->out.size()) {
    ssize_t n = send(c->fd, c->out.data() + c->written, c->out.size() - c->written, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      drop(c);
      return false;
    }
    c->written += static_cast<size_t>(n);
  }
  if (c->written == c->out.size()) {
    c->out.clear();
    c->written = 0;
  }
  bool more = !c->out.empty();
  if (more != c->wants_to_write) {
    epoll_event event{};
    event.events = EPOLLIN | (more ? EPOLLOUT : 0U);
    event.data.fd = c->fd;
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
    c->wants_to_write = more;
  }
  return true;
}

void reply(Connection* c, string_view body, string_view status = "200 OK") {
  char head[160];
  int n = snprintf(head, sizeof head, "HTTP/1.1 %.*s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
                   static_cast<int>(status.size()), status.data(), body.size());
  c->out.append(head, static_cast<size_t>(n)).append(body);
}

void http_chunk(Connection* c, string_view data) {
  char size[24];
  int n = snprintf(size, sizeof size, "%zx\r\n", data.size());
  c->out.append(size, static_cast<size_t>(n)).append(data).append("\r\n");
}

void token_chunk(Connection* c) {
  char event[320];
  int n = snprintf(event, sizeof event,
                   "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\","
                   "\"choices\":[{\"index\":0,\"delta\":{%s\"content\":\"@%ld@\"},\"logprobs\":null,"
                   "\"finish_reason\":null}]}\n\n",
                   c->chunks_sent ? "" : "\"role\":\"assistant\",", nanoseconds(CLOCK_MONOTONIC));
  http_chunk(c, string_view(event, static_cast<size_t>(n)));
  c->chunks_sent++;
  c->chunks_left--;
  used_tokens++;
}

void end_stream(Connection* c) {
  char usage[400];
  int n = snprintf(usage, sizeof usage,
                   "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\","
                   "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
  http_chunk(c, string_view(usage, static_cast<size_t>(n)));
  c->out += "0\r\n\r\n";
  c->streaming = false;
  running--;
  used_tokens -= c->prompt_tokens + c->chunks_sent;
}

long wish(string_view text, string_view name, long otherwise) {
  size_t at = text.find(name);
  return at == string_view::npos ? otherwise : atol(string(text.substr(at + name.size(), 20)).c_str());
}

void answer_chat(Connection* c, string_view body) {
  string_view text = body.substr(0, kMarkBytes);
  size_t mark = text.find("[[");
  text = mark == string_view::npos ? string_view() : text.substr(mark, text.find("]]", mark) - mark);
  c->prompt_tokens = static_cast<long>(body.size()) / kTokenBytes;
  prefilled_tokens += c->prompt_tokens;
  if (body.find("\"stream\":true") == string_view::npos) {
    char whole[512];
    int n = snprintf(whole, sizeof whole,
                     "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"bench\",\"choices\":[{"
                     "\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello to you too.\",\"tool_calls\":null},"
                     "\"logprobs\":null,\"finish_reason\":\"stop\",\"matched_stop\":2}],\"usage\":{\"prompt_tokens\":%ld,"
                     "\"total_tokens\":%ld,\"completion_tokens\":5,\"prompt_tokens_details\":null}}",
                     c->prompt_tokens, c->prompt_tokens + 5);
    reply(c, string_view(whole, static_cast<size_t>(n)));
    return;
  }
  c->out += "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
  c->streaming = true;
  c->chunks_sent = 0;
  c->chunks_left = wish(text, "chunks=", 8);
  c->interval_ns = wish(text, "interval_us=", 0) * 1000;
  running++;
  used_tokens += c->prompt_tokens;
  if (c->interval_ns == 0) {
    flat_out.push_back(c->fd);
    return;
  }
  token_chunk(c);
  timers.push({nanoseconds(CLOCK_MONOTONIC) + c->interval_ns, c->fd, c->serial});
}

void answer(Connection* c, string_view target, string_view body) {
  char text[900];
  auto is = [&](string_view path) { return target.substr(0, path.size()) == path; };
  if (is("/v1/chat/completions")) {
    answer_chat(c, body);
  } else if (is("/v1/loads")) {
    double now = static_cast<double>(nanoseconds(CLOCK_REALTIME)) / 1e9;
    time_t seconds = static_cast<time_t>(now);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", gmtime(&seconds));
    snprintf(text, sizeof text,
             "{\"timestamp\":\"%s.%06ld+00:00\",\"version\":\"0.5.23\",\"loads\":[{\"timestamp\":%.6f,\"dp_rank\":0,"
             "\"num_running_reqs\":%ld,\"num_waiting_reqs\":0,\"num_waiting_uncached_tokens\":0,\"num_used_tokens\":%ld,"
             "\"max_total_num_tokens\":%ld,\"token_usage\":%.4f,\"total_prefill_uncached_tokens\":%ld,"
             "\"total_prefill_busy_us\":%ld}]}",
             stamp, static_cast<long>((now - static_cast<double>(seconds)) * 1e6), now, running, used_tokens, pool_tokens,
             static_cast<double>(used_tokens) / static_cast<double>(pool_tokens), prefilled_tokens, prefilled_tokens);
    reply(c, text);
  } else if (is("/server_info") || is("/get_server_info")) {
    snprintf(text, sizeof text,
             "{\"served_model_name\":\"bench\",\"version\":\"0.5.23\",\"max_total_num_tokens\":%ld,\"max_req_input_len\":%ld,"
             "\"context_length\":1048576,\"max_running_requests\":2048,\"chunked_prefill_size\":8192,\"dp_size\":1,"
             "\"page_size\":1,\"internal_states\":[{\"effective_max_running_requests_per_dp\":2048}]}",
             pool_tokens, pool_tokens - 6);
    reply(c, text);
  } else if (is("/v1/models")) {
    reply(c, "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"max_model_len\":1048576}]}");
  } else if (is("/model_info") || is("/get_model_info")) {
    reply(c, "{\"model_path\":\"bench\",\"is_generation\":true}");
  } else if (is("/ready") || is("/health") || is("/abort_request")) {
    reply(c, "");
  } else {
    reply(c, "{\"detail\":\"Not Found\"}", "404 Not Found");
  }
}

// Answers what is there, one request after the other. False: the connection is gone.
bool serve(Connection* c) {
  while (!c->streaming) {
    size_t end = c->in.find("\r\n\r\n");
    if (end == string::npos) break;
    size_t length = 0;
    for (size_t at = c->in.find("\r\n"); at < end; at = c->in.find("\r\n", at + 2)) {
      if (strncasecmp(c->in.c_str() + at + 2, "content-length:", 15) == 0) {
        length = strtoul(c->in.c_str() + at + 17, nullptr, 10);
      }
    }
    size_t whole = end + 4 + length;
    if (c->in.size() < whole) break;
    size_t target = c->in.find(' ') + 1;
    string_view view(c->in);
    answer(c, view.substr(target, view.find(' ', target) - target), view.substr(end + 4, length));
    c->in.erase(0, whole);
  }
  return flush(c);
}

void advance(Connection* c) {
  if (c->chunks_left > 0) {
    token_chunk(c);
    if (flush(c)) timers.push({nanoseconds(CLOCK_MONOTONIC) + c->interval_ns, c->fd, c->serial});
    return;
  }
  end_stream(c);
  serve(c);
}

void pump_flat_out() {
  for (size_t i = 0; i < flat_out.size();) {
    int fd = flat_out[i];
    Connection* c = connections[fd];
    if (c->out.size() - c->written < kWaitingBytes) {
      if (c->chunks_left > 0) {
        token_chunk(c);
        flush(c);
      } else {
        flat_out.erase(flat_out.begin() + static_cast<long>(i));
        end_stream(c);
        serve(c);
        continue;
      }
    }
    if (i < flat_out.size() && flat_out[i] == fd) i++;
  }
}

void read_from(Connection* c) {
  static char buffer[kReadBytes];
  while (true) {
    ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      drop(c);
      return;
    }
    c->in.append(buffer, static_cast<size_t>(n));
    if (static_cast<size_t>(n) < sizeof buffer) break;
  }
  serve(c);
}

void accept_all(int listener) {
  int fd = -1;
  while ((fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    auto* c = new Connection;
    c->fd = fd;
    c->serial = ++serials;
    connections[fd] = c;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }
}

// How long to wait for the network, in nanoseconds; negative: for ever.
timespec* until_due(timespec* time) {
  long ns = 0;
  if (flat_out.empty()) {
    if (timers.empty()) return nullptr;
    ns = std::max(0L, timers.top().at - nanoseconds(CLOCK_MONOTONIC));
  }
  *time = {ns / 1'000'000'000, ns % 1'000'000'000};
  return time;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: engine PORT [POOL_TOKENS]\n");
    return 2;
  }
  if (argc > 2) pool_tokens = atol(argv[2]);
  signal(SIGPIPE, SIG_IGN);
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(atoi(argv[1])));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(listener, 4096) != 0) {
    perror("engine");
    return 1;
  }
  poller = epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener;
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  epoll_event events[512];
  while (true) {
    timespec time{};
    int ready = epoll_pwait2(poller, events, 512, until_due(&time), nullptr);
    for (int i = 0; i < ready; i++) {
      int fd = events[i].data.fd;
      if (fd == listener) {
        accept_all(listener);
        continue;
      }
      auto found = connections.find(fd);
      if (found == connections.end()) continue;
      if ((events[i].events & EPOLLOUT) && !flush(found->second)) continue;
      if (events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) read_from(found->second);
    }
    long now = nanoseconds(CLOCK_MONOTONIC);
    while (!timers.empty() && timers.top().at <= now) {
      Due due = timers.top();
      timers.pop();
      auto found = connections.find(due.fd);
      if (found != connections.end() && found->second->serial == due.serial && found->second->streaming) {
        advance(found->second);
      }
    }
    pump_flat_out();
  }
}
