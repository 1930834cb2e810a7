#include "fleet/controller.h"

#include <utility>

#include "base/error.h"
#include "fleet/service.h"

namespace flotilla::fleet {

Controller::Controller(ControllerOptions options)
    : service_(std::make_shared<Service>(std::move(options))) {}

Controller::~Controller() {
  if (service_) service_->shutdown();
}

Controller::Controller(Controller&& other) noexcept = default;
Controller& Controller::operator=(Controller&& other) noexcept {
  std::swap(service_, other.service_);
  return *this;
}

Stream Controller::stream(const Message& job) { return {service_, service_->dispatch(job)}; }
void Controller::cancel(int signal) { service_->cancel(signal); }
void Controller::shutdown() { service_->shutdown(); }
bool Controller::is_alive() const { return service_->is_alive(); }

Stream::Stream(std::shared_ptr<Service> service, std::shared_ptr<ServedJob> job)
    : service_(std::move(service)), job_(std::move(job)) {}

Stream::~Stream() { abandon(); }

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(service_, other.service_);
  std::swap(job_, other.job_);
  std::swap(owner_, other.owner_);
  return *this;
}

std::optional<Message> Stream::next() {
  if (std::this_thread::get_id() != owner_) {
    fail(ErrorKind::usage,
         "a stream belongs to the thread that dispatched its job; another one used it");
  }
  FLOTILLA_ASSERT(job_ != nullptr);
  return service_->next(*job_);
}

void Stream::drain() {
  while (next()) {
  }
}

void Stream::abandon() noexcept {
  if (job_) service_->abandon(job_);
}

}  // namespace flotilla::fleet
