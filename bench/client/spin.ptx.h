// A kernel that does a fixed amount of work, whatever happens meanwhile: clocks run on while a context is switched out,
// so a kernel that waits for one would be paid for time it did not get.
//
//   spin(ns, scale, out)   ns * scale / 65536 dependent multiply-adds in every thread
//
// `scale` comes from calibrating alone on the device. The simulated machine reads only the first parameter.
#pragma once

inline constexpr const char* kSpinPtx = R"(
.version 6.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 ns, .param .u64 scale, .param .u64 out)
{
    .reg .u64 %n, %scale, %i, %out;
    .reg .f32 %x;
    .reg .pred %more, %never;
    ld.param.u64 %n, [ns];
    ld.param.u64 %scale, [scale];
    ld.param.u64 %out, [out];
    mul.lo.u64 %n, %n, %scale;
    shr.u64 %n, %n, 16;
    mov.u64 %i, 0;
    mov.f32 %x, 0f3F800000;
    setp.ge.u64 %more, %i, %n;
    @%more bra done;
loop:
    fma.rn.f32 %x, %x, 0f3F7FFFFE, 0f33800000;
    add.u64 %i, %i, 1;
    setp.lt.u64 %more, %i, %n;
    @%more bra loop;
done:
    setp.eq.f32 %never, %x, 0f7F800000;
    @%never st.global.f32 [%out], %x;
    ret;
}
.visible .entry empty()
{
    ret;
}
)";
