"""Answers as its input MODE says: what a model may do, and what it must not."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            mode = pb_utils.get_input_tensor_by_name(request, "MODE")
            mode = "" if mode is None else mode.as_numpy().flat[0].decode()
            response = self.answer(mode, request, x)
            if response is not None:
                responses.append(response)
        return responses

    def answer(self, mode, request, x):
        y = pb_utils.Tensor("Y", x * 2)
        told = pb_utils.Tensor("TOLD", np.array([[self.told(mode, request, x)]] * len(x), dtype=object))
        if mode == "error":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("told to fail"))
        if mode.startswith("code "):
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("told to fail", getattr(pb_utils.TritonError, mode[5:]))
            )
        if mode == "raise":
            raise ValueError("told to raise")
        if mode == "too few":
            return None
        if mode == "one is missing":
            return pb_utils.InferenceResponse([told])
        if mode == "one too many":
            return pb_utils.InferenceResponse([y, told, pb_utils.Tensor("Z", x)])
        if mode == "other datatype":
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.astype(np.float64)), told])
        if mode == "other rows":
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros((5, 3), dtype=np.float32)), told])
        if mode == "not an array":
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", 3.0), told])
        if mode == "in place":
            x += 1
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x), told])
        if mode == "strides":
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.stack([x, -x], axis=2)[:, ::-1, 0]), told])
        if mode == "dlpack":
            return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", y.to_dlpack()), told])
        return pb_utils.InferenceResponse(output_tensors=[y, told])

    def told(self, mode, request, x):
        return json.dumps(
            {
                "rows": len(x),
                "inputs": [tensor.name() for tensor in request.inputs()],
                "outputs": sorted(request.requested_output_names()),
                "id": request.request_id(),
                "timeout": request.timeout(),
                "parameters": request.parameters(),
                "correlation": request.correlation_id(),
                "flags": request.flags(),
                "kind": self.args["model_instance_kind"],
                "name": self.args["model_name"],
                "version": self.args["model_version"],
                "folder": "/".join(pb_utils.get_model_dir().split("/")[-2:]),
                "max_batch_size": self.config["max_batch_size"],
                "input": [[each[key] for key in ("name", "data_type", "dims")] for each in self.config["input"]],
                "mine": self.config["parameters"]["mine"]["string_value"],
            }
            if mode == "tell"
            else mode
        ).encode()
