#include "graph/framework_names.h"

#include <unordered_map>
#include <vector>

namespace precog {
namespace {

struct Group {
  FrameworkName traits;     // what all its names share
  std::string_view names;   // separated by spaces
};

// Names from PyTorch's native_functions.yaml; autocast classes from autocast_mode.h, see docs/model_notes/autocast_lists.md.
// A name on no list has none, whatever its group: the lists are applied after the groups.
constexpr Group kGroups[] = {
    // --- operators of our own list
    {{.kind = OpKind::relu}, "relu"},
    {{.kind = OpKind::hardtanh}, "hardtanh relu6"},
    {{.kind = OpKind::gelu}, "gelu"},
    {{.kind = OpKind::silu}, "silu"},
    {{.kind = OpKind::tanh}, "tanh"},
    {{.kind = OpKind::sigmoid}, "sigmoid"},
    {{.kind = OpKind::neg}, "neg"},
    {{.kind = OpKind::exp}, "exp"},
    {{.kind = OpKind::rsqrt}, "rsqrt"},
    {{.kind = OpKind::pow}, "pow"},
    {{.kind = OpKind::cos}, "cos"},
    {{.kind = OpKind::sin}, "sin"},
    {{.kind = OpKind::add}, "add"},
    {{.kind = OpKind::sub}, "sub"},
    {{.kind = OpKind::mul}, "mul"},
    {{.kind = OpKind::div}, "div true_divide divide"},
    {{.kind = OpKind::masked_fill}, "masked_fill"},
    {{.kind = OpKind::softmax}, "softmax _softmax _safe_softmax"},
    {{.kind = OpKind::log_softmax}, "log_softmax _log_softmax"},
    {{.kind = OpKind::mean}, "mean"},
    {{.kind = OpKind::sum}, "sum"},
    {{.kind = OpKind::contiguous}, "contiguous"},
    {{.kind = OpKind::cat}, "cat concat stack"},
    {{.kind = OpKind::embedding}, "embedding"},
    {{.kind = OpKind::layer_norm}, "layer_norm native_layer_norm"},
    {{.kind = OpKind::rms_norm}, "rms_norm _fused_rms_norm"},
    {{.kind = OpKind::group_norm}, "group_norm native_group_norm"},
    {{.kind = OpKind::batch_norm}, "batch_norm native_batch_norm cudnn_batch_norm _native_batch_norm_legit _batch_norm_with_update "
                                   "_batch_norm_no_update _batch_norm_impl_index miopen_batch_norm"},
    {{.kind = OpKind::nll_loss}, "nll_loss nll_loss_forward nll_loss2d nll_loss2d_forward"},
    {{.kind = OpKind::max_pool2d}, "max_pool2d max_pool2d_with_indices"},
    {{.kind = OpKind::max_pool2d_backward}, "max_pool2d_with_indices_backward"},
    {{.kind = OpKind::adaptive_avg_pool2d}, "adaptive_avg_pool2d _adaptive_avg_pool2d"},
    {{.kind = OpKind::index_select}, "index_select"},
    {{.kind = OpKind::topk}, "topk"},
    {{.kind = OpKind::dropout}, "dropout native_dropout feature_dropout _fused_dropout"},
    {{.kind = OpKind::scaled_dot_product_attention}, "scaled_dot_product_attention"},
    {{.kind = OpKind::linear}, "linear addmm"},
    {{.kind = OpKind::matmul}, "matmul mm bmm baddbmm addbmm mv addmv dot vdot"},
    {{.kind = OpKind::grouped_linear}, "grouped_mm _grouped_mm"},
    {{.kind = OpKind::conv2d}, "convolution _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
                               "cudnn_convolution cudnn_convolution_transpose"},
    {{.kind = OpKind::rnn}, "lstm gru rnn rnn_tanh rnn_relu _cudnn_rnn"},
    {{.kind = OpKind::cast}, "cast to _to_copy type_as"},
    {{.kind = OpKind::read_back}, "read_back item _local_scalar_dense"},
    // --- their gradients, in recipes
    {{.kind = OpKind::layer_norm_backward}, "native_layer_norm_backward layer_norm_backward"},
    {{.kind = OpKind::rms_norm_backward}, "_fused_rms_norm_backward"},
    {{.kind = OpKind::group_norm_backward}, "native_group_norm_backward group_norm_backward"},
    {{.kind = OpKind::softmax_backward}, "_softmax_backward_data softmax_backward"},
    {{.kind = OpKind::log_softmax_backward}, "_log_softmax_backward_data log_softmax_backward"},
    {{.kind = OpKind::nll_loss_backward}, "nll_loss_backward nll_loss2d_backward"},
    {{.kind = OpKind::embedding_backward}, "embedding_dense_backward embedding_backward _embedding_bag_dense_backward _embedding_bag_backward"},
    // --- views
    {{.kind = OpKind::view}, "view _unsafe_view reshape _reshape_alias squeeze unsqueeze flatten unflatten detach alias lift lift_fresh "
                             "view_as_real view_as_complex real imag view_as _conj _neg_view resolve_conj resolve_neg"},
    {{.kind = OpKind::view, .view = ViewKind::transpose}, "transpose t permute movedim moveaxis swapaxes swapdims adjoint mT mH numpy_T"},
    {{.kind = OpKind::view, .view = ViewKind::slice}, "slice select narrow diagonal unfold as_strided"},
    {{.kind = OpKind::view, .view = ViewKind::expand}, "expand expand_as broadcast_to"},
    {{.kind = OpKind::split}, "split split_with_sizes chunk unbind tensor_split unsafe_split unsafe_chunk unsafe_split_with_sizes hsplit vsplit"},
    // --- pointwise
    {{.kind = OpKind::pointwise},
     "abs absolute sign sgn ceil floor round trunc fix frac positive square sqrt reciprocal clamp clamp_min clamp_max clip threshold "
     "hardswish hardsigmoid hardshrink softshrink leaky_relu rrelu rrelu_with_noise prelu _prelu_kernel rsub subtract multiply negative lerp "
     "addcmul addcdiv outer addr where eq ne lt le gt ge not_equal less less_equal greater greater_equal isnan isinf isfinite isposinf "
     "isneginf isclose logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift "
     "bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ maximum minimum fmax fmin remainder fmod "
     "floor_divide copysign nextafter signbit heaviside deg2rad rad2deg nan_to_num tril triu conj_physical complex relu_ "
     "_foreach_add _foreach_mul mul_scalar add_scalar fake_quantize_per_tensor_affine quantize_per_tensor dequantize "
     "bucketize searchsorted gcd lcm ldexp frexp"},
    {{.kind = OpKind::pointwise, .transcendental = true},
     "expm1 exp2 log log2 log10 log1p tan asin acos atan atan2 sinh cosh asinh acosh atanh arcsin arccos arctan arctan2 arcsinh arccosh "
     "arctanh erf erfc erfinv special_erf lgamma digamma polygamma mvlgamma i0 sinc hypot logaddexp logaddexp2 logit log_sigmoid "
     "log_sigmoid_forward softplus mish elu selu celu float_power xlogy special_xlog1py special_expit "
     "special_log_ndtr special_ndtr special_ndtri special_entr special_i0e special_i1 special_zeta angle polar "
     ""},
    {{.kind = OpKind::pointwise, .transcendental = true},
     "gelu_backward silu_backward tanh_backward sigmoid_backward softplus_backward mish_backward elu_backward log_sigmoid_backward "
     "logit_backward glu_backward glu_jvp"},
    {{.kind = OpKind::pointwise},
     "threshold_backward hardtanh_backward hardswish_backward hardsigmoid_backward leaky_relu_backward hardshrink_backward "
     "softshrink_backward rrelu_with_noise_backward _prelu_kernel_backward native_dropout_backward "
     "mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward "
     "soft_margin_loss_backward "
     "multi_margin_loss_backward multilabel_margin_loss_backward "
     "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward fake_quantize_per_tensor_affine_cachemask_backward"},
    {{.kind = OpKind::pointwise, .transcendental = true}, "glu lstm_cell gru_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell rnn_tanh_cell rnn_relu_cell"},
    // --- losses: a pointwise kernel, then (unless reduction is none) a reduction
    {{.kind = OpKind::pointwise, .reduces_after = true},
     "mse_loss smooth_l1_loss huber_loss l1_loss soft_margin_loss hinge_embedding_loss margin_ranking_loss multi_margin_loss "
     "multilabel_margin_loss multilabel_margin_loss_forward triplet_margin_loss cosine_embedding_loss"},
    {{.kind = OpKind::pointwise, .transcendental = true, .reduces_after = true},
     "binary_cross_entropy binary_cross_entropy_with_logits kl_div poisson_nll_loss"},
    // --- reductions
    {{.kind = OpKind::reduction},
     "amax amin aminmax max min argmax argmin prod any all norm linalg_vector_norm linalg_norm linalg_matrix_norm frobenius_norm nuclear_norm "
     "var std var_mean std_mean nansum nanmean count_nonzero logsumexp trace dist equal allclose is_nonzero median nanmedian mode "
     "_amp_foreach_non_finite_check_and_unscale sum_to_size linalg_vecdot batch_norm_stats batch_norm_gather_stats "
     "batch_norm_gather_stats_with_counts batch_norm_backward_reduce cosine_similarity pairwise_distance renorm cross linalg_cross tensordot "
     "_weight_norm_interface _weight_norm_interface_backward _fused_moving_avg_obs_fq_helper histc bincount norm_except_dim "
     "_linalg_det linalg_det det logdet slogdet"},
    {{.kind = OpKind::scan}, "cumsum cumprod cummax cummin logcumsumexp _cummax_helper _cummin_helper diff cumulative_trapezoid"},
    // --- copies
    {{.kind = OpKind::copy},
     "clone copy _copy_from copy_into repeat tile roll flip fliplr flipud rot90 pixel_shuffle pixel_unshuffle channel_shuffle "
     "native_channel_shuffle im2col col2im unfold_copy pin_memory to_dense to_sparse narrow_copy expand_copy view_copy permute_copy "
     "transpose_copy slice_copy select_copy unsqueeze_copy squeeze_copy as_strided_copy hstack vstack dstack column_stack block_diag meshgrid "
     "cartesian_prod kron reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
     "_pad_circular _nested_tensor_from_mask _pad_packed_sequence resize resize_as set_data pad_sequence "
     "batch_norm_elemt _conj_copy _to_cpu diag diag_embed diagonal_copy vander"},
    {{.kind = OpKind::copy, .clears_first = true},
     "constant_pad_nd pad slice_backward select_backward diagonal_backward unfold_backward index_select_backward "
     "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
     "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"},
    {{.kind = OpKind::copy, .clones_first = true}, "slice_scatter select_scatter diagonal_scatter as_strided_scatter"},
    // --- gathers and scatters
    {{.kind = OpKind::gather},
     "index _unsafe_index gather take take_along_dim embedding_bag _embedding_bag _embedding_bag_forward_only embedding_renorm grid_sampler "
     "grid_sampler_2d grid_sampler_3d cudnn_grid_sampler repeat_interleave roi_align _roi_align roi_pool ps_roi_align deform_conv2d "
     "affine_grid_generator segment_reduce _pack_padded_sequence"},
    {{.kind = OpKind::gather, .waits = true}, "masked_select nonzero argwhere nonzero_numpy nonzero_static"},
    {{.kind = OpKind::scatter, .clones_first = true},
     "index_put _unsafe_index_put _index_put_impl index_add index_copy index_fill index_reduce scatter scatter_add scatter_reduce masked_scatter put"},
    {{.kind = OpKind::scatter, .clears_first = true},
     "one_hot gather_backward _roi_align_backward roi_align_backward roi_pool_backward grid_sampler_2d_backward grid_sampler_3d_backward "
     "deform_conv2d_backward embedding_sparse_backward _segment_reduce_backward masked_select_backward value_selecting_reduction_backward "
     "_pack_padded_sequence_backward max_unpool2d"},
    // --- sorts
    {{.kind = OpKind::sort}, "sort argsort msort kthvalue quantile nanquantile nms multinomial"},
    {{.kind = OpKind::sort, .waits = true}, "_unique _unique2 unique_dim unique_consecutive"},
    // --- pooling and resampling
    {{.kind = OpKind::pool},
     "max_pool1d max_pool3d max_pool1d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool3d "
     "_adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d "
     "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
     "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
     "max_unpool3d"},
    {{.kind = OpKind::pool_backward},
     "max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
     "_adaptive_avg_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward fractional_max_pool2d_backward "
     "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward _upsample_nearest_exact1d_backward "
     "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward upsample_linear1d_backward upsample_bilinear2d_backward "
     "upsample_trilinear3d_backward upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward"},
    // --- tensors out of nothing
    {{.kind = OpKind::fill},
     "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full fill fill_ zero arange linspace logspace eye scalar_tensor range "
     "_efficientzerotensor tril_indices triu_indices hann_window hamming_window blackman_window bartlett_window kaiser_window"},
    {{.kind = OpKind::allocate}, "empty empty_like new_empty empty_strided new_empty_strided empty_permuted lift_fresh_copy sym_size"},
    {{.kind = OpKind::random},
     "randperm rand randn rand_like randn_like randint randint_like bernoulli uniform normal exponential geometric cauchy log_normal random poisson "
     "binomial _standard_gamma _sample_dirichlet"},
};

constexpr std::string_view kLower =
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu addmm addmv addr matmul einsum "
    "mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell "
    "rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention cudnn_convolution cudnn_convolution_transpose _cudnn_rnn lstm gru rnn rnn_tanh "
    "rnn_relu";
constexpr std::string_view kFp32 =
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm native_layer_norm group_norm "
    "frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss "
    "smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa";
constexpr std::string_view kFp32Result = "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm";
constexpr std::string_view kPromote = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add";

template <class Visit>
void each_word(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

struct Table {
  std::vector<FrameworkName> all;
  std::unordered_map<std::string_view, std::size_t> by_name;

  Table() {
    for (const Group& group : kGroups)
      each_word(group.names, [&](std::string_view name) {
        FrameworkName entry = group.traits;
        entry.name = name;
        add(entry);
      });
    for (auto [names, autocast] : {std::pair{kLower, Autocast::lower}, {kFp32, Autocast::fp32}, {kFp32Result, Autocast::fp32_result},
                                   {kPromote, Autocast::promote}})
      each_word(names, [&](std::string_view name) { all[add({.name = name})].autocast = autocast; });
  }
  std::size_t add(const FrameworkName& entry) {  // the first of a name stays
    const auto [at, added] = by_name.try_emplace(entry.name, all.size());
    if (added) all.push_back(entry);
    return at->second;
  }
};

const Table& table() {
  static const Table kTable;
  return kTable;
}

}  // namespace

const FrameworkName* framework_name(std::string_view name) {
  const auto found = table().by_name.find(name);
  return found == table().by_name.end() ? nullptr : &table().all[found->second];
}

std::span<const FrameworkName> framework_names() { return table().all; }

}  // namespace precog
