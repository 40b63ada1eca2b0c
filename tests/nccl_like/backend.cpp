// A c10d backend that is towards Python what ProcessGroupNCCL is, without a device: ops that nobody
// waits for in Python have no handle, handles hold the outputs of their ops, and asking one may
// block. Tensors on a device are of `privateuseone`, and counted while they live.
#include <Python.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

namespace {

using Tensors = std::vector<at::Tensor>;
using Handle = c10::intrusive_ptr<c10d::Work>;

std::atomic<int> block_ms{0};
std::atomic<bool> is_over{false};
std::atomic<long> asked{0}, asked_with_lock{0}, handles{0}, tensors{0};

void be_asked() {
  asked++;
  asked_with_lock += PyGILState_Check();
  std::this_thread::sleep_for(std::chrono::milliseconds(block_ms.load()));
}

struct LikeWork : c10d::Work {
  LikeWork(c10d::OpType type, Tensors outputs) : Work(-1, type), outputs_(std::move(outputs)) {
    handles++;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future_->markCompleted(c10::IValue(outputs_));
  }
  ~LikeWork() override { handles--; }
  bool isCompleted() override {
    be_asked();
    return is_over;
  }
  bool isSuccess() const override { return true; }
  float getDuration() const override {
    be_asked();
    return 1.0;
  }
  // As that of NCCL: the stream waits, and the host goes on.
  bool wait(std::chrono::milliseconds) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

struct LikeBackend : c10d::Backend {
  using Backend::Backend;
  const std::string getBackendName() const override { return "nccl_like"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { is_coalescing_ = true; }
  Handle endCoalescing() override {
    is_coalescing_ = false;
    return c10::make_intrusive<LikeWork>(c10d::OpType::COALESCED, Tensors{});
  }
  Handle allreduce(Tensors& values, const c10d::AllreduceOptions& options) override {
    return issue(c10d::OpType::ALLREDUCE, values, options.asyncOp);
  }
  Handle broadcast(Tensors& values, const c10d::BroadcastOptions& options) override {
    return issue(c10d::OpType::BROADCAST, values, options.asyncOp);
  }
  Handle _allgather_base(at::Tensor& output, at::Tensor&, const c10d::AllgatherOptions& options) override {
    return issue(c10d::OpType::_ALLGATHER_BASE, {output}, options.asyncOp);
  }
  Handle barrier(const c10d::BarrierOptions& options) override {
    return issue(c10d::OpType::BARRIER, {}, options.asyncOp);
  }
  Handle send(Tensors& values, int, int) override {
    return issue(c10d::OpType::SEND, values, true);
  }
  Handle recv(Tensors& values, int, int) override {
    return issue(c10d::OpType::RECV, values, true);
  }

 private:
  Handle issue(c10d::OpType type, Tensors outputs, bool has_handle) {
    if (!has_handle || is_coalescing_) {
      return nullptr;
    }
    return c10::make_intrusive<LikeWork>(type, std::move(outputs));
  }
  bool is_coalescing_ = false;
};

c10::intrusive_ptr<c10d::Backend> make(
    const c10::intrusive_ptr<c10d::Store>&, int rank, int size, const std::chrono::duration<float>&) {
  return c10::make_intrusive<LikeBackend>(rank, size);
}

void forget(void* memory) {
  tensors--;
  std::free(memory);
}

at::Tensor make_tensor(int64_t count) {
  const auto device = c10::Device(c10::DeviceType::PrivateUse1, 0);
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  void* memory = std::malloc(bytes);
  tensors++;
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       c10::DataPtr(memory, memory, &forget, device), nullptr, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      caffe2::TypeMeta::Make<float>());
  made.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return made;
}

// As DDP does in backward: a thread that has no frame of Python issues the ops.
void reduce_in_thread(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const at::Tensor& value, int ops) {
  std::thread([&] {
    pthread_setname_np(pthread_self(), "like_autograd");
    for (int op = 0; op < ops; op++) {
      Tensors values{value};
      c10d::AllreduceOptions options;
      options.asyncOp = true;
      group->allreduce(values, options)->wait();
    }
  }).join();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("make", &make);
  m.def("make_tensor", &make_tensor);
  m.def("reduce_in_thread", &reduce_in_thread, py::call_guard<py::gil_scoped_release>());
  m.def("block", [](int milliseconds) { block_ms = milliseconds; });
  m.def("end_ops", [] { is_over = true; });
  m.def("asked", [] { return asked.load(); });
  m.def("asked_with_lock", [] { return asked_with_lock.load(); });
  m.def("handles", [] { return handles.load(); });
  m.def("tensors", [] { return tensors.load(); });
}
