#pragma once
typedef unsigned long size_t;
#ifndef __cplusplus
#define NULL ((void*)0)
#endif
