import asyncio
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            model = pb_utils.get_input_tensor_by_name(request, "MODEL").as_numpy()[0].decode()
            inputs = [pb_utils.get_input_tensor_by_name(request, name) for name in ("INPUT0", "INPUT1")]
            asked = pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUTPUT0"], inputs=inputs)
            alone = await asked.async_exec()  # of two that fail at a time, a tritonserver 2.51 may die
            if alone.has_error():
                responses.append(pb_utils.InferenceResponse(error=alone.error()))
                continue
            several = await asyncio.gather(asked.async_exec(), asked.async_exec())
            first, second = (pb_utils.get_output_tensor_by_name(each, "OUTPUT0").as_numpy() for each in several)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", first + second)]))
        return responses
