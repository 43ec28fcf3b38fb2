#include "attention/comm/mpi/request.hpp"

#include <algorithm>

#include "attention/comm/reductions/stages.hpp"

namespace annulus::comm {

namespace {

/// How long unwinding waits for exchanges that are given up, all together.
constexpr auto give_up_after = std::chrono::seconds(2);

/// The collectives have a communicator of their own, with a tag for each of their channels.
int tag_of(int channel) {
  return channel < 0 ? -1 - channel : channel;
}

}  // namespace

MpiState::PeerMessages& MpiState::messages_of(MpiChunk& chunk) {
  const auto found = std::ranges::find_if(groups_, [&](const PeerMessages& messages) {
    return messages.peer == chunk.peer && messages.receives == chunk.receives;
  });
  chunk.group = static_cast<std::size_t>(found - groups_.begin());
  return found != groups_.end() ? *found : groups_.emplace_back(PeerMessages{chunk.peer, chunk.receives});
}

template <class Start>
void MpiState::in_chunks(MpiChunk chunk, std::size_t chunk_bytes, const Start& start) {
  PeerMessages& messages = messages_of(chunk);
  messages.bytes += chunk.bytes;
  for (;; chunk.offset += chunk_bytes) {
    chunk.count = static_cast<int>(std::min(chunk.bytes - chunk.offset, chunk_bytes));
    // Room first: a request that has started must not be lost.
    chunks_.push_back(chunk);
    requests_.push_back(MPI_REQUEST_NULL);
    start(chunk, &requests_.back());
    ++messages.under_way;
    if (static_cast<std::size_t>(chunk.count) < chunk_bytes) return;  // the short last chunk
  }
}

void MpiState::receive(const Receive& message, int channel, std::size_t chunk_bytes) {
  in_chunks({message.peer, channel, true, receives_++, false, 0, 0, 0, message.bytes}, chunk_bytes,
            [&](const MpiChunk& chunk, MPI_Request* request) {
              ANNULUS_MPI(MPI_Irecv, static_cast<std::byte*>(message.data) + chunk.offset, chunk.count,
                          MPI_BYTE, message.peer, tag_of(channel), link_->handle, request);
            });
}

void MpiState::send(const Send& message, int channel, std::size_t chunk_bytes) {
  in_chunks({message.peer, channel, false, sends_++, false, 0, 0, 0, message.bytes}, chunk_bytes,
            [&](const MpiChunk& chunk, MPI_Request* request) {
              ANNULUS_MPI(MPI_Isend, static_cast<const std::byte*>(message.data) + chunk.offset, chunk.count,
                          MPI_BYTE, message.peer, tag_of(channel), link_->handle, request);
            });
}

bool MpiState::complete() const {
  return std::all_of(requests_.begin(), requests_.end(),
                     [](MPI_Request request) { return request == MPI_REQUEST_NULL; });
}

void MpiState::wait() {
  if (test()) return;  // what has finished by now ended at a time that nobody knows
  const Watchdog::Waiting waiting(link_->watchdog.get(), [this] { return pending(); });
  while (!complete()) {
    if (stages_under_way()) {  // others may wait for what this rank posts next
      if (test()) return;
      advance_stages();
      std::this_thread::yield();
      continue;
    }
    int finished = 0;
    const int code = MPI_Waitsome(static_cast<int>(requests_.size()), requests_.data(), &finished,
                                  indices_.data(), statuses_.data());
    check(code, "MPI_Waitsome", finished, true);
  }
}

std::vector<Pending> MpiState::pending() const {
  const std::lock_guard lock(mutex_);
  std::vector<Pending> messages;
  for (const MpiChunk& chunk : chunks_) {
    const bool listed = !messages.empty() && messages.back().receive == chunk.receives &&
                        messages.back().index == chunk.index;  // by another chunk of the same message
    if (chunk.done || listed) continue;
    messages.push_back({chunk.receives, chunk.index, chunk.peer,
                        link_->world_ranks[static_cast<std::size_t>(chunk.peer)], chunk.channel,
                        chunk.bytes});
  }
  return messages;
}

bool MpiState::test() {
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int finished = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &finished,
                                indices_.data(), statuses_.data());
  check(code, "MPI_Testsome", finished, false);
  looked_ = Watchdog::Clock::now();
  return complete();
}

void MpiState::check(int code, const char* call, int finished, bool watched) {
  if (code != MPI_ERR_IN_STATUS) mpi_check(code, call);
  for (int i = 0; i < finished;
       ++i) {  // finished is MPI_UNDEFINED, which is negative, when nothing was active
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    MpiChunk& chunk = chunks_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
    if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) {
      int error_class = MPI_SUCCESS;
      MPI_Error_class(status.MPI_ERROR, &error_class);
      if (error_class == MPI_ERR_TRUNCATE) size_error(chunk, "more");
      mpi_check(status.MPI_ERROR, call);
    }
    if (chunk.receives) {
      int received = 0;
      ANNULUS_MPI(MPI_Get_count, &status, MPI_BYTE, &received);
      if (received != chunk.count)
        size_error(chunk, std::to_string(chunk.offset + static_cast<std::size_t>(received)) + " bytes");
    }
    {
      const std::lock_guard lock(mutex_);
      chunk.done = true;
    }
    PeerMessages& messages = groups_[chunk.group];
    if (--messages.under_way == 0 && chunk.channel >= 0) tell_time(messages, watched);
  }
}

void MpiState::tell_time(const PeerMessages& messages, bool watched) const {
  const auto now = Watchdog::Clock::now();
  const auto time = now - posted_;
  const bool known = watched || 10 * (now - looked_) < time;
  if (!known || link_->watchdog == nullptr) return;
  link_->watchdog->message_times().add(link_->world_ranks[static_cast<std::size_t>(messages.peer)],
                                       messages.receives, messages.bytes, Watchdog::in_seconds(time));
}

void MpiState::size_error(const MpiChunk& chunk, const std::string& sent) const {
  link_->has_strays = true;
  int rank = 0;
  MPI_Comm_rank(link_->handle, &rank);
  fail("rank {} expects {} bytes from rank {} on {}, which sends {}: both sides must agree on the size", rank,
       chunk.bytes, chunk.peer, channel_name(chunk.channel), sent);
}

MpiState::~MpiState() {
  // Receives are cancelled, and sends (which MPI cannot cancel) get a moment to complete before they are left
  // to MPI.
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized || complete()) return;
  link_->has_strays = true;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL && chunks_[i].receives) MPI_Cancel(&requests_[i]);
  const auto now = std::chrono::steady_clock::now();
  if (link_->give_up_at == std::chrono::steady_clock::time_point{}) link_->give_up_at = now + give_up_after;
  do {
    for (MPI_Request& request : requests_) {
      int done = 0;
      if (request != MPI_REQUEST_NULL) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    if (complete()) return;
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < link_->give_up_at);
  for (MPI_Request& request : requests_)
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
}

}  // namespace annulus::comm
