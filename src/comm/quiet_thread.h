// A thread without signals: they are for the compute thread. Private to the watchers of comm/ and
// pipeline/.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace flotilla::comm {

template <typename Body>
std::thread start_quietly(Body&& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::forward<Body>(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace flotilla::comm
