/* SPDX-License-Identifier: Apache-2.0 */
/* fake_hip: the names of HIP for the calls of fake_cuda.c. */
#ifndef PAWL_TESTS_FAKE_HIP_H
#define PAWL_TESTS_FAKE_HIP_H

#ifdef FAKE_HIP
#define cuInit hipInit
#define cuDriverGetVersion hipDriverGetVersion
#define cuGetErrorName hipDrvGetErrorName
#define cuDeviceGet hipDeviceGet
#define cuDeviceGetPCIBusId hipDeviceGetPCIBusId
#define cuCtxSynchronize hipDeviceSynchronize
#define cuCtxGetStreamPriorityRange hipDeviceGetStreamPriorityRange
#define cuPointerGetAttributes hipDrvPointerGetAttributes
#define cuMemHostRegister_v2 hipHostRegister
#define cuMemHostUnregister hipHostUnregister
#define cuMemAlloc_v2 hipMalloc
#define cuMemFree_v2 hipFree
#define cuMemGetInfo_v2 hipMemGetInfo
#define cuStreamCreateWithPriority hipStreamCreateWithPriority
#define cuStreamDestroy_v2 hipStreamDestroy
#define cuStreamIsCapturing hipStreamIsCapturing
#define cuStreamWaitEvent hipStreamWaitEvent
#define cuStreamSynchronize hipStreamSynchronize
#define cuEventCreate hipEventCreateWithFlags
#define cuEventDestroy_v2 hipEventDestroy
#define cuEventRecord hipEventRecord
#define cuEventQuery hipEventQuery
#define cuEventSynchronize hipEventSynchronize
#define cuMemcpyDtoHAsync_v2 hipMemcpyDtoHAsync
#define cuMemcpyHtoDAsync_v2 hipMemcpyHtoDAsync
#define cuMemcpyDtoDAsync_v2 hipMemcpyDtoDAsync
#define cuMemcpy2DAsync_v2 hipMemcpyParam2DAsync
#define cuThreadExchangeStreamCaptureMode hipThreadExchangeStreamCaptureMode
#endif

#endif
