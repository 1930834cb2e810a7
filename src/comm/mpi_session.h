// Owners of MPI itself and of its communicators. Private to comm/: no other room sees mpi.h.
#pragma once

#include <mpi.h>

#include <string_view>

namespace flotilla::comm {

// Errors (ErrorKind::communication): `code` is not MPI_SUCCESS; the message has MPI's own text.
void check_mpi(int code, std::string_view call);

// MPI_Init_thread; one thread of the process calls MPI. Works without a launcher: one rank.
class MpiSession {
 public:
  MpiSession();
  // Local: a rank that unwinds must not wait for the others, and so does not finalise.
  ~MpiSession() = default;
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // Collective, the last call of MPI.
  void finalize();
  [[noreturn]] void abort(int exit_code) noexcept;

 private:
  bool open_ = false;
  int rank_ = 0;
  int world_size_ = 1;
};

// Owner of a communicator. Freeing is collective in MPI's words, so it is an explicit free(); the
// destructor leaves the handle to MPI_Finalize or to the process' end.
class MpiComm {
 public:
  // All collective over `parent`; MPI's errors come back as codes.
  static MpiComm duplicate(MPI_Comm parent);
  static MpiComm split(MPI_Comm parent, int color, int key);
  static MpiComm split_shared(MPI_Comm parent);  // the ranks that can share memory

  MpiComm() = default;
  MpiComm(MpiComm&& other) noexcept;
  MpiComm& operator=(MpiComm&& other) noexcept;
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int size() const;
  void free();

 private:
  explicit MpiComm(MPI_Comm comm) : comm_(comm) {}
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace flotilla::comm
