/* What gpustat and nvitop ask a driver and the tests' stand-in does not play, answered as a driver without the feature does.
 * Without these their time would go into tracebacks about a library that lacks the function. */
#define NOT_SUPPORTED(name) int name(void) { return 3; }

NOT_SUPPORTED(nvmlDeviceGetComputeMode)
NOT_SUPPORTED(nvmlDeviceGetDecoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetDisplayActive)
NOT_SUPPORTED(nvmlDeviceGetDriverModel)
NOT_SUPPORTED(nvmlDeviceGetDriverModel_v2)
NOT_SUPPORTED(nvmlDeviceGetEncoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetEnforcedPowerLimit)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed)
NOT_SUPPORTED(nvmlDeviceGetPciInfo_v3)
NOT_SUPPORTED(nvmlDeviceGetPerformanceState)
NOT_SUPPORTED(nvmlDeviceGetPersistenceMode)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimit)
NOT_SUPPORTED(nvmlDeviceGetPowerUsage)
NOT_SUPPORTED(nvmlDeviceGetProcessUtilization)
NOT_SUPPORTED(nvmlDeviceGetTemperature)
NOT_SUPPORTED(nvmlDeviceGetTemperatureV)
NOT_SUPPORTED(nvmlDeviceGetTotalEccErrors)
NOT_SUPPORTED(nvmlDeviceGetUtilizationRates)
