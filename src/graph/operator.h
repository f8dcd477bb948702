// What precog knows about each operator: its family, what autocast does with it, the work it is, its gradient.
// One definition per line of operators.def, in the family files beside this one.
#pragma once

#include <string_view>

#include "graph/graph.h"

namespace precog {

// How kernels are chosen and costed.
enum class Family : std::uint8_t {
  gemm, convolution, attention, normalization, softmax, loss, pointwise, cast, copy, reduction, pooling,
  embedding, index, optimizer, loss_scaling, collective, fill, view, recurrent, unknown, host
};

struct Work {  // the arithmetic and the least memory traffic of one call
  Flops flops;
  Bytes read, written;
};

class GradientContext;

struct OperatorDefinition {
  Family family = Family::pointwise;
  Autocast autocast = Autocast::none;
  Work (*work)(const Graph&, const Op&) = nullptr;   // default: read every input, write every output, one flop each
  void (*gradient)(GradientContext&) = nullptr;      // default: none, nothing flows back
  bool transcendental = false;                       // pointwise: an exponential or the like, slower than moving its operands
};

const OperatorDefinition& definition(OpKind kind);
// The operator whose arithmetic this is: itself, or for a generic backward kernel the forward operator it is named after.
OpKind arithmetic_of(const Graph& graph, const Op& op);
Work work_of(const Graph& graph, const Op& op);
std::string_view to_text(Family family);
// How much one of the collectives carries: what it says, or else what its operand or its result is.
Bytes message_bytes(const Graph& graph, const Op& op);
// Tensor-core work: matrix products, convolutions, attention.
bool is_matrix_work(OpKind kind);
// x, weight -> y; each gradient of a convolution is as much again.
Flops convolution_flops(const Shape& x, const Shape& y, const ConvAttributes& conv);
// What a step must compute, by convention: each product of the forward graph, and again for each of its operands that
// needs a gradient. Recomputation, and how an attention kernel does it, do not count; nor does the precision.
Flops training_flops(const Graph& forward);

#define PRECOG_OPERATOR(name) OperatorDefinition define_##name();
#include "graph/operators.def"
#undef PRECOG_OPERATOR

// Handed to an operator's gradient function: what came back for its outputs, and where to put what goes to its
// inputs. It emits backward operators in the order in which autograd would run them.
class GradientContext {
 public:
  struct Sink {  // the training pass's side of the conversation
    virtual ~Sink() = default;
    virtual TensorId emit(Op op, std::span<const TensorId> inputs, const Tensor& output) = 0;
    virtual void emit_to(Op op, std::span<const TensorId> inputs, std::span<const TensorId> outputs) = 0;
    virtual TensorId make(const Tensor& tensor) = 0;
    virtual void receive(TensorId forward_tensor, TensorId gradient) = 0;
    virtual TensorId saved(TensorId forward_tensor) = 0;
  };

  GradientContext(Graph& graph, OpId op, std::span<const TensorId> output_gradients, Sink& sink)
      : graph_(graph), op_(op), output_gradients_(output_gradients), sink_(sink) {}

  const Op& op() const { return graph_.ops[op_]; }
  Graph& graph() { return graph_; }
  std::size_t input_count() const { return op().input_count; }
  TensorId input(std::size_t i) const { return graph_.input(op(), i); }
  TensorId output(std::size_t i = 0) const { return graph_.output(op(), i); }
  const Tensor& tensor(TensorId id) const { return graph_.tensors[id]; }
  bool needs(std::size_t i) const { return i < input_count() && tensor(input(i)).requires_grad; }
  TensorId gradient(std::size_t i = 0) const { return output_gradients_[i]; }  // may be invalid: nothing came back

  // The forward tensor as backward sees it: saved, or made again by recomputation.
  TensorId saved(TensorId forward) { return sink_.saved(forward); }
  TensorId saved_input(std::size_t i) { return saved(input(i)); }
  TensorId saved_output(std::size_t i = 0) { return saved(output(i)); }

  // Emits a backward operator with one result of the given shape and type.
  TensorId emit(OpKind kind, std::initializer_list<TensorId> inputs, const Shape& shape, DType dtype,
                Attributes attributes = {}, std::string_view label = {}) {
    return emit(kind, std::span<const TensorId>(inputs.begin(), inputs.size()), shape, dtype, std::move(attributes), label);
  }
  TensorId emit(OpKind kind, std::span<const TensorId> inputs, const Shape& shape, DType dtype, Attributes attributes = {},
                std::string_view label = {});
  TensorId emit_view(TensorId of, const Shape& shape, ViewKind kind = ViewKind::reshape);
  // A backward operator with one gradient per needed input (norms, convolution, attention).
  void emit_for_inputs(OpKind kind, std::span<const TensorId> inputs, std::span<const std::size_t> needed, Attributes attributes = {});
  void emit_for_inputs(OpKind kind, std::initializer_list<TensorId> inputs, std::initializer_list<std::size_t> needed,
                       Attributes attributes = {}) {
    emit_for_inputs(kind, std::span<const TensorId>(inputs.begin(), inputs.size()),
                    std::span<const std::size_t>(needed.begin(), needed.size()), std::move(attributes));
  }
  // Runs the gradient that was recorded for this operator (Op::recipe) instead of a definition's.
  void run_recipe();
  // Hands a gradient to input i, summed to its shape where it was broadcast.
  void give(std::size_t i, TensorId gradient);

 private:
  Graph& graph_;
  OpId op_;
  std::span<const TensorId> output_gradients_;
  Sink& sink_;
};

}  // namespace precog
