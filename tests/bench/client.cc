// A load client that is never what is measured: one thread, epoll. Prints one JSON object; times in microseconds.
//
//   client requests PORT connections=32 seconds=2 [rate=100] [bytes=262144] [seed=1]
//   client streams  PORT connections=64 chunks=120 interval_us=25000
//
// `rate`: an open loop of so many requests a second; latency then counts from the moment one was due.
// `seed`: every connection asks with a text of its own, that no cache can know; else all ask with the same.
// A stream's delay is from the stamp in a chunk ("@nanoseconds@", see engine.cc) to its arrival here.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <string>
#include <vector>

using std::string;

namespace {

constexpr long kSecond = 1'000'000'000L;
constexpr long kPatience = 60 * kSecond;  // behind the planned end

long now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// One answer as it arrives: status, where it ends, and the stamps in its body.
class Answer {
 public:
  int status = 0;
  bool done = false, broken = false;
  std::vector<long> stamps;

  void feed(const char* data, size_t size) {
    size_t at = 0;
    while (at < size && !done && !broken) at += in_body_ ? body(data + at, size - at) : head(data + at, size - at);
  }

 private:
  bool in_body_ = false, chunked_ = false;
  size_t left_ = 0;  // of the body, or of the chunk
  enum { kSize, kData, kDataEnd, kTrailer } stage_ = kSize;
  string line_, text_;

  size_t head(const char* data, size_t size) {
    size_t before = line_.size();
    line_.append(data, size);
    size_t end = line_.find("\r\n\r\n");
    if (end == string::npos) return size;
    for (char& c : line_) c = static_cast<char>(tolower(c));
    status = atoi(line_.c_str() + 9);
    size_t length = line_.find("\r\ncontent-length:");
    chunked_ = line_.find("\r\ntransfer-encoding: chunked") < end;
    if (!chunked_ && length < end) left_ = strtoul(line_.c_str() + length + 17, nullptr, 10);
    done = !chunked_ && left_ == 0;
    in_body_ = true;
    line_.clear();
    return end + 4 - before;
  }

  size_t body(const char* data, size_t size) {
    if (!chunked_) {
      size_t taken = std::min(left_, size);
      left_ -= taken;
      done = left_ == 0;
      return taken;
    }
    if (stage_ == kData) {
      size_t taken = std::min(left_, size);
      look_for_stamps(data, taken);
      left_ -= taken;
      if (left_ == 0) stage_ = kDataEnd;
      return taken;
    }
    const char* newline = static_cast<const char*>(memchr(data, '\n', size));
    size_t taken = newline ? static_cast<size_t>(newline - data) + 1 : size;
    line_.append(data, taken);
    if (newline) end_of_line();
    return taken;
  }

  void end_of_line() {
    if (stage_ == kSize) {
      broken = !isxdigit(static_cast<unsigned char>(line_[0]));
      left_ = strtoul(line_.c_str(), nullptr, 16);
      stage_ = left_ ? kData : kTrailer;
    } else if (stage_ == kDataEnd) {
      broken = line_ != "\r\n";
      stage_ = kSize;
    } else {
      done = line_ == "\r\n";
    }
    line_.clear();
  }

  void look_for_stamps(const char* data, size_t size) {
    text_.append(data, size);
    size_t at = 0;
    while ((at = text_.find('@', at)) != string::npos) {
      size_t end = text_.find('@', at + 1);
      if (end == string::npos) {
        text_.erase(0, at);
        return;
      }
      stamps.push_back(atol(text_.c_str() + at + 1));
      at = end + 1;
    }
    text_.clear();
  }
};

struct Connection {
  int fd = -1;
  bool busy = false;
  long asked_at = 0, last_at = 0;
  size_t sent = 0, seen = 0;
  Answer answer;
};

struct Plan {
  string kind;
  int port = 0;
  long connections = 1, rate = 0, bytes = 0, chunks = 0, interval_us = 0, seed = 0;
  double seconds = 2;
};

class Load {
 public:
  explicit Load(const Plan& plan) : plan_(plan), streams_(plan.kind == "streams") {
    for (long i = 0; i < (plan_.seed ? plan_.connections : 1); i++) requests_.push_back(request(plan_.seed + i));
  }

  int run() {
    poller_ = epoll_create1(0);
    all_.resize(static_cast<size_t>(plan_.connections));
    started_ = now();
    ends_ = started_ + static_cast<long>(plan_.seconds * 1e9);
    for (size_t i = 0; i < all_.size(); i++) {
      if (!connect_one(i)) return 1;
      if (plan_.rate && !streams_) {
        idle_.push_back(i);
      } else {
        ask(i, now());
      }
    }
    while (!over()) step();
    report();
    return 0;
  }

 private:
  Plan plan_;
  bool streams_;
  std::vector<string> requests_;  // one for each connection, or one for all
  int poller_ = -1;
  std::vector<Connection> all_;
  std::deque<size_t> idle_;
  long started_ = 0, ends_ = 0, last_chunk_at_ = 0, due_count_ = 0;
  long active_ = 0, errors_ = 0;
  std::map<int, long> statuses_;
  std::vector<long> latencies_, delays_, gaps_, firsts_;

  // A word for each place; the same seed gives the same text.
  static const char* word(size_t place, long seed) {
    static const char* words[] = {"river", "about", "Montag", "seven", "blue", "cannot", "window", "train"};
    uint32_t mixed = static_cast<uint32_t>(place) * 2654435761U + static_cast<uint32_t>(seed) * 40503U;
    mixed = (mixed ^ (mixed >> 15)) * 2246822519U;
    return words[(mixed >> 13) % 8];
  }

  string request(long seed) const {
    char text[200];
    if (streams_) {
      snprintf(text, sizeof text, "[[chunks=%ld interval_us=%ld]] Say something.", plan_.chunks, plan_.interval_us);
    } else {
      snprintf(text, sizeof text, "Say hello, please, in one short sentence.");
    }
    string content = text;
    for (size_t i = 0; content.size() < static_cast<size_t>(plan_.bytes); i++) content.append(" ").append(word(i, seed));
    string body = "{\"model\":\"bench\",\"messages\":[{\"role\":\"user\",\"content\":\"" + content + "\"}],\"max_tokens\":" +
                  std::to_string(streams_ ? plan_.chunks : 16) + (streams_ ? ",\"stream\":true}" : "}");
    return "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:" + std::to_string(plan_.port) +
           "\r\ncontent-type: application/json\r\naccept: */*\r\nuser-agent: bench\r\ncontent-length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  bool connect_one(size_t i) {
    Connection& c = all_[i];
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(plan_.port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c.fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      perror("client");
      return false;
    }
    int on = 1;
    setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    watch(i, EPOLLIN, EPOLL_CTL_ADD);
    return true;
  }

  void watch(size_t i, uint32_t what, int change) {
    epoll_event event{};
    event.events = what;
    event.data.u64 = i;
    epoll_ctl(poller_, change, all_[i].fd, &event);
  }

  void ask(size_t i, long asked_at) {
    Connection& c = all_[i];
    c.busy = true;
    c.asked_at = asked_at;
    c.sent = c.seen = 0;
    c.answer = Answer();
    active_++;
    write_more(i);
  }

  void write_more(size_t i) {
    Connection& c = all_[i];
    const string& request = requests_[i % requests_.size()];
    bool waited = c.sent > 0;
    while (c.sent < request.size()) {
      ssize_t n = send(c.fd, request.data() + c.sent, request.size() - c.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) break;
      c.sent += static_cast<size_t>(n);
    }
    if (c.sent < request.size()) {
      watch(i, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    } else if (waited) {
      watch(i, EPOLLIN, EPOLL_CTL_MOD);
    }
  }

  bool over() const {
    long time = now();
    if (streams_) return active_ == 0 || time > started_ + plan_.chunks * plan_.interval_us * 1000 + kPatience;
    return time >= ends_ && (active_ == 0 || time > ends_ + kPatience);
  }

  // Sends what is due in an open loop; returns the milliseconds until the next.
  int send_due() {
    if (streams_ || !plan_.rate) return 100;
    while (now() < ends_ && !idle_.empty()) {
      long due = started_ + due_count_ * kSecond / plan_.rate;
      if (due > now()) return static_cast<int>((due - now()) / 1'000'000);
      size_t i = idle_.front();
      idle_.pop_front();
      due_count_++;
      ask(i, due);
    }
    return 20;
  }

  void step() {
    epoll_event events[256];
    int ready = epoll_wait(poller_, events, 256, send_due());
    for (int e = 0; e < ready; e++) {
      size_t i = events[e].data.u64;
      if (events[e].events & EPOLLOUT) write_more(i);
      if (events[e].events & ~static_cast<uint32_t>(EPOLLOUT)) read_from(i);
    }
  }

  void read_from(size_t i) {
    static char buffer[256 * 1024];
    Connection& c = all_[i];
    ssize_t n = recv(c.fd, buffer, sizeof buffer, 0);
    long time = now();
    if (n <= 0) {
      errors_ += c.busy;
      active_ -= c.busy;
      c.busy = false;
      close(c.fd);
      if (!over() && connect_one(i)) next(i);
      return;
    }
    c.answer.feed(buffer, static_cast<size_t>(n));
    for (; c.seen < c.answer.stamps.size(); c.seen++) {
      delays_.push_back(time - c.answer.stamps[c.seen]);
      (c.seen ? gaps_ : firsts_).push_back(time - (c.seen ? c.last_at : c.asked_at));
      c.last_at = last_chunk_at_ = time;
    }
    if (!c.answer.done && !c.answer.broken) return;
    bool complete = !streams_ || c.seen == static_cast<size_t>(plan_.chunks);
    errors_ += c.answer.broken || !complete;
    statuses_[c.answer.status]++;
    latencies_.push_back(time - c.asked_at);
    c.busy = false;
    active_--;
    next(i);
  }

  void next(size_t i) {
    if (streams_) return;
    if (plan_.rate) {
      idle_.push_back(i);
    } else if (now() < ends_) {
      ask(i, now());
    }
  }

  static void print(const char* name, std::vector<long>& values) {
    printf(",\"%s\":{", name);
    std::sort(values.begin(), values.end());
    const std::pair<const char*, double> shares[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}};
    for (auto [label, share] : shares) {
      size_t at = std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
      printf("\"%s\":%.1f,", label, values.empty() ? -1 : static_cast<double>(values[at]) / 1000);
    }
    printf("\"max\":%.1f}", values.empty() ? -1 : static_cast<double>(values.back()) / 1000);
  }

  void report() {
    long end = streams_ ? last_chunk_at_ : std::min(now(), ends_);
    double seconds = std::max(1e-9, static_cast<double>(end - started_) / 1e9);
    printf("{\"requests\":%zu,\"errors\":%ld,\"seconds\":%.4f,\"statuses\":{", latencies_.size(), errors_ + active_, seconds);
    const char* comma = "";
    for (auto [status, count] : statuses_) {
      printf("%s\"%d\":%ld", comma, status, count);
      comma = ",";
    }
    printf("},\"chunks\":%zu", delays_.size());
    print("latency_us", latencies_);
    if (streams_) {
      print("delay_us", delays_);
      print("gap_us", gaps_);
      print("first_us", firsts_);
    }
    printf("}\n");
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: client requests|streams PORT [name=value ...]\n");
    return 2;
  }
  Plan plan;
  plan.kind = argv[1];
  plan.port = atoi(argv[2]);
  for (int i = 3; i < argc; i++) {
    string option = argv[i];
    size_t at = option.find('=');
    string name = option.substr(0, at);
    double value = at == string::npos ? 0 : atof(option.c_str() + at + 1);
    if (name == "connections") plan.connections = static_cast<long>(value);
    if (name == "seconds") plan.seconds = value;
    if (name == "rate") plan.rate = static_cast<long>(value);
    if (name == "bytes") plan.bytes = static_cast<long>(value);
    if (name == "chunks") plan.chunks = static_cast<long>(value);
    if (name == "seed") plan.seed = static_cast<long>(value);
    if (name == "interval_us") plan.interval_us = static_cast<long>(value);
  }
  return Load(plan).run();
}
