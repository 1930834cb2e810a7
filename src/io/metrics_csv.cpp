#include "io/metrics_csv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "io/metrics.h"

namespace flotilla::io {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& value, bool is_median) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (is_median && value.is_array())
    return value.empty() ? ""
                         : Json(spread_over_ranks(value.get<std::vector<double>>()).median).dump();
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<CsvColumn> make_columns() {
  std::vector<CsvColumn> columns = {{"start", "/start"},
                                    {"end", "/end"},
                                    {"flotilla", "/versions/flotilla"},
                                    {"commit", "/versions/commit"},
                                    {"model", "/versions/model"},
                                    {"model_digest", "/versions/model_digest"},
                                    {"host", "/environment/host"},
                                    {"slurm_job_id", "/slurm/job_id"},
                                    {"slurm_array_task_id", "/slurm/array_task_id"},
                                    {"restart_count", "/slurm/restart_count"},
                                    {"job_hash", "/job/hash"},
                                    {"seed", "/job/seed"},
                                    {"pipeline", "/plan/pipeline"},
                                    {"world_size", "/plan/world_size"},
                                    {"device", "/devices/0/device"},
                                    {"precision", "/plan/precision"},
                                    {"width", "/plan/stage_2/width"},
                                    {"height", "/plan/stage_2/height"},
                                    {"num_frames", "/plan/num_frames"},
                                    {"frame_rate", "/plan/frame_rate"},
                                    {"audio_tokens", "/plan/audio_tokens"}};
  for (const char* stage : {"stage_1", "stage_2"}) {
    for (const char* figure : {"parallel", "guidance_groups", "steps", "video_tokens"})
      columns.push_back(
          {fmt::format("{}_{}", stage, figure), fmt::format("/plan/{}/{}", stage, figure)});
    columns.push_back(
        {fmt::format("{}_step_s", stage), fmt::format("/steps/{}", stage), /*is_median=*/true});
  }
  for (const char* phase : {"load_enhancer", "enhance", "load_text", "text", "encode_images",
                            "load_transformer", "stage_1", "upsample", "fuse_loras", "stage_2",
                            "write_latents", "decode_audio", "decode_video"})
    columns.push_back({fmt::format("{}_s", phase), fmt::format("/phases/{}_s", phase)});
  for (const auto& [name, pointer] :
       {std::pair("total_s", "/total_s"), std::pair("checkpoint_writes", "/checkpoint/writes"),
        std::pair("checkpoint_s", "/checkpoint/seconds"),
        std::pair("exchange_bytes", "/exchange/bytes"),
        std::pair("exchange_s", "/exchange/seconds"),
        std::pair("bytes_read_total", "/bytes_read_total"),
        std::pair("padding_fraction", "/padding_fraction"),
        std::pair("peak_host_bytes", "/peak_host_bytes"),
        std::pair("peak_device_bytes", "/peak_device_bytes"),
        std::pair("video_checksum", "/latents/stage_2/video/checksum"),
        std::pair("audio_checksum", "/latents/stage_2/audio/checksum")})
    columns.push_back({name, pointer});
  return columns;
}

}  // namespace

const std::vector<CsvColumn>& metrics_columns() {
  static const std::vector<CsvColumn> columns = make_columns();
  return columns;
}

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string cell = "\"";
  for (const char letter : text) {
    cell += letter;
    if (letter == '"') cell += letter;
  }
  return cell + "\"";
}

std::string metrics_csv(const Json& metrics) {
  std::vector<std::string> names, values;
  for (const auto& column : metrics_columns()) {
    names.push_back(column.name);
    const Json::json_pointer place(column.pointer);
    values.push_back(
        metrics.contains(place) ? csv_cell(text_of(metrics.at(place), column.is_median)) : "");
  }
  return fmt::format("{}\n{}\n", fmt::join(names, ","), fmt::join(values, ","));
}

}  // namespace flotilla::io
