import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """`simple` with numbers as text."""

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().astype(np.int32)
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy().astype(np.int32)
            outputs = [pb_utils.Tensor("OUTPUT0", _text(a + b)), pb_utils.Tensor("OUTPUT1", _text(a - b))]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses


def _text(numbers):
    return np.array([str(each).encode() for each in numbers.flat], dtype=object).reshape(numbers.shape)
