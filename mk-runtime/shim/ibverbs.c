/* libibverbs, opened when it is first called: each function that Rust code references forwards to the library's, and fails
 * with ENOSYS where there is none. `mk_ibverbs_available` tells. Handles are opaque here; only widths of arguments matter. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

static void *library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_library(void) {
  library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
}

int mk_ibverbs_available(void) {
  pthread_once(&once, open_library);
  return library != NULL;
}

static void *find(const char *name) {
  void *found = mk_ibverbs_available() ? dlsym(library, name) : NULL;
  if (!found) errno = ENOSYS;
  return found;
}

/* Looked up at each call: the control path only. The data path goes through tables of functions that contexts carry. */
#define FORWARD(ret, otherwise, name, params, args) \
  ret name params {                                 \
    ret(*function) params;                          \
    *(void **)&function = find(#name);              \
    return function ? function args : (otherwise);  \
  }
#define FORWARD_VOID(name, params, args)  \
  void name params {                      \
    void(*function) params;               \
    *(void **)&function = find(#name);    \
    if (function) function args;          \
  }

FORWARD(void *, NULL, ibv_get_device_list, (int *n), (n))
FORWARD_VOID(ibv_free_device_list, (void *list), (list))
FORWARD(const char *, NULL, ibv_get_device_name, (void *device), (device))
FORWARD(uint64_t, 0, ibv_get_device_guid, (void *device), (device))
FORWARD(int, -1, ibv_get_device_index, (void *device), (device))
FORWARD(void *, NULL, ibv_open_device, (void *device), (device))
FORWARD(int, ENOSYS, ibv_close_device, (void *context), (context))
FORWARD(int, ENOSYS, ibv_query_device, (void *context, void *attr), (context, attr))
FORWARD(int, ENOSYS, ibv_query_port, (void *context, uint8_t port, void *attr), (context, port, attr))
FORWARD(int, -1, ibv_query_gid, (void *context, uint8_t port, int i, void *gid), (context, port, i, gid))
FORWARD(long, -ENOSYS, _ibv_query_gid_table, (void *context, void *entries, size_t n, uint32_t flags, size_t size),
        (context, entries, n, flags, size))
FORWARD(int, -1, ibv_get_async_event, (void *context, void *event), (context, event))
FORWARD_VOID(ibv_ack_async_event, (void *event), (event))
FORWARD(void *, NULL, ibv_alloc_pd, (void *context), (context))
FORWARD(int, ENOSYS, ibv_dealloc_pd, (void *pd), (pd))
FORWARD(void *, NULL, ibv_reg_mr, (void *pd, void *base, size_t n, int access), (pd, base, n, access))
FORWARD(void *, NULL, ibv_reg_mr_iova2, (void *pd, void *base, size_t n, uint64_t iova, unsigned access),
        (pd, base, n, iova, access))
FORWARD(void *, NULL, ibv_reg_dmabuf_mr, (void *pd, uint64_t offset, size_t n, uint64_t iova, int fd, int access),
        (pd, offset, n, iova, fd, access))
FORWARD(int, ENOSYS, ibv_dereg_mr, (void *mr), (mr))
FORWARD(void *, NULL, ibv_create_cq, (void *context, int n, void *tag, void *channel, int vector),
        (context, n, tag, channel, vector))
FORWARD(int, ENOSYS, ibv_destroy_cq, (void *cq), (cq))
FORWARD(void *, NULL, ibv_create_qp, (void *pd, void *attr), (pd, attr))
FORWARD(int, ENOSYS, ibv_modify_qp, (void *qp, void *attr, int mask), (qp, attr, mask))
FORWARD(int, ENOSYS, ibv_destroy_qp, (void *qp), (qp))
FORWARD(const char *, "libibverbs is not here", ibv_wc_status_str, (int status), (status))
FORWARD(const char *, "libibverbs is not here", ibv_event_type_str, (int event), (event))
