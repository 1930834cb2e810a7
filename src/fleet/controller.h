// A fleet: resident ranks that serve job after job, held by a program outside MPI. The Controller
// starts `mpirun -n N PROGRAM worker`; each rank sets up a Runner once (worker.h) and then runs one
// job at a time. docs/fleet.md has an example and the table of errors.
#pragma once

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fleet/errors.h"
#include "fleet/message.h"
#include "fleet/mpirun.h"
#include "fleet/stream.h"

namespace flotilla::fleet {

struct ControllerOptions {
  int ranks = 1;
  // "2,3": CUDA_VISIBLE_DEVICES of the fleet (parse_devices()); empty: as in this process.
  std::string devices;
  // The program of a rank and its arguments; empty: this program, with the argument `worker`.
  std::vector<std::string> worker;
  Variables environment;  // on top of that of this process
  std::string mpirun;     // empty: found
  double start_timeout_s = 300;
  // From stream() to the end of the job, the time in which nobody reads its items included; 0: no
  // limit.
  double job_timeout_s = 0;
  // From shutdown() to the end of ranks that have not left by then.
  double grace_s = 10;
  // Items that wait to be read; beyond this the driver waits in emit().
  int64_t queue_bytes = int64_t{256} << 20;
};

class Service;

// All members can be called from any thread.
class Controller {
 public:
  // Returns when all ranks have set up their runners. Errors: ErrorKind::usage (values out of
  // range; this process is itself a rank), ErrorKind::machine (no mpirun), StartError.
  explicit Controller(ControllerOptions options);
  ~Controller();  // shutdown()
  Controller(Controller&& other) noexcept;
  Controller& operator=(Controller&& other) noexcept;
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // Hands the job to the ranks and returns at once; it takes a copy of the tensors. Errors:
  // ControllerBusyError, PoisonedError, ClosedError; ErrorKind::config (a message that does not
  // pass: text that is not UTF-8, a dtype that message.h does not know).
  Stream stream(const Message& job);

  // Asks the job in flight to stop at its next safe point, where JobScope::stop_signal() gives
  // `signal`, and returns at once. Nothing to do without a job; one that comes later is not meant.
  void cancel(int signal = SIGINT);

  // Ends the fleet and waits for that: ranks are asked to leave after the job in flight, which is
  // asked to stop, and are ended after grace_s whatever they do. What a job has yielded up to
  // then can still be read. Again: nothing to do.
  void shutdown();

  // Takes jobs, or will when the one in flight has ended.
  bool is_alive() const;

 private:
  std::shared_ptr<Service> service_;
};

}  // namespace flotilla::fleet
